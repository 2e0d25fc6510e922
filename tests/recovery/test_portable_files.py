"""Random graphs: a file of any interrupt resumes to the state that its thread resumes to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec.structs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milecastle import InvalidRequest, MilecastleError, ResumeRefused
from milecastle.app.portable.files import PortableFiles
from milecastle.app.results import Result
from milecastle.engine.plan import Ending
from milecastle.engine.reserved_channels import SENDS
from milecastle.model.interrupt import Interrupt
from milecastle.stores.memory import MemoryStore
from milecastle.testing import Simulator
from tests.simulation.random_graphs import World, build
from tests.simulation.random_shapes import INPUT, NAP, Exit, Member, Shape, Tally, random_shape


class Saver:
    """Drives threads of one random graph, and finds the files that they leave."""

    def __init__(self, shape: Shape, folder: Path, seed: int) -> None:
        self.folder = folder
        app = build(shape, World(), MemoryStore(), folder)
        self.simulator: Simulator[Tally] = Simulator(app, seed=seed)

    def run(self, thread: str, checkpoint: Path | None = None) -> tuple[Tally, list[Path]]:
        """Bring a thread to its end, from the input or from a file; the state, and its files."""
        before = {*self.folder.iterdir()}
        status, waiting = self._call(
            thread, INPUT if checkpoint is None else None, None, checkpoint
        )
        while status != "completed":
            if status == "sleeping":
                self.simulator.clock.advance(NAP)
            answers = {found.id: reply(found) for found in waiting if found.asks}
            # One question at a time: the other answers are pending when the next file is saved.
            status, waiting = self._call(thread, None, dict([*answers.items()][:1]) or None)
        return self.simulator.app.state(thread).state, sorted({*self.folder.iterdir()} - before)

    def _call(
        self,
        thread: str,
        input: Any,
        answers: dict[str, int] | None,
        checkpoint: Path | None = None,
    ) -> tuple[str, tuple[Interrupt, ...]]:
        try:
            found: Result[Tally] | Any = self.simulator.invoke(
                input, thread, answers=answers, file=checkpoint
            )
        except ResumeRefused:  # some tasks still sleep
            self.simulator.clock.advance(NAP)
            found = self.simulator.app.state(thread)
        except InvalidRequest as error:
            if "the subgraph of task" not in str(error):
                raise
            found = self.simulator.app.state(thread)  # no file: it could not hold everything
        return found.status, found.interrupts


def reply(found: Interrupt) -> int:
    """The same answer whenever the same node asks the same."""
    return len(f"{found.node}{found.question}")


def compare(shape: Shape, seed: int) -> list[str]:
    """Each file that does not resume to the end of its thread."""
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(shape, Path(folder), seed)
        end, paths = saver.run("t")
        return [
            f"{path.name}: {found}, and the thread: {end}"
            for number, path in enumerate(paths)
            if (found := ended(saver, f"from-file-{number}", path)) != end
        ]


def ended(saver: Saver, thread: str, path: Path) -> Tally | str:
    """The state that a file resumes to, or why it does not."""
    try:
        return saver.run(thread, path)[0]
    except MilecastleError as error:
        return str(error)


@settings(max_examples=settings().max_examples // 5)
@given(seed=st.integers(0, 2**32))
def test_file_of_every_interrupt_resumes_as_its_thread_does(seed: int) -> None:
    """Tried: files without the items that were sent, and without deferred nodes (the controls)."""
    assert compare(random_shape(Random(seed)), seed) == []


def only_ready(ending: Ending) -> Ending:
    """What files held once: the nodes that an edge of the last step led to."""
    return msgspec.structs.replace(ending, next=ending.next[:1])


def without_sends(ending: Ending) -> Ending:
    reserved = {name: value for name, value in ending.reserved.items() if name != SENDS}
    return msgspec.structs.replace(ending, reserved=reserved)


FANNED = Shape(
    members=[
        Member("h0", "plain", Exit("send", ("w0a", "w0b"))),
        Member("w0a", "plain", Exit("fixed", ("h1",))),
        Member("w0b", "plain", Exit("fixed", ("h1",))),
        Member("h1", "turn", Exit("loop", ("h0",))),
    ],
    rounds=2,
    before=("w0a",),
)
DEFERRED = Shape(
    members=[
        Member("h0", "plain", Exit("fixed", ("w0a", "w0j"))),
        Member("w0a", "plain", Exit("fixed", ("w0b",))),
        Member("w0b", "plain", Exit("loop", ("h0",))),
        Member("w0j", "turn", Exit("loop", ("h0",)), defer=True),
    ],
    rounds=0,
    before=("w0b",),
)


@pytest.mark.parametrize(
    ("shape", "cheat"),
    [
        pytest.param(FANNED, without_sends, id="sends"),
        pytest.param(DEFERRED, only_ready, id="deferred nodes"),
    ],
)
def test_files_that_lose_work_are_caught(
    shape: Shape, cheat: Callable[[Ending], Ending], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same comparison, with files that leave something out."""
    assert compare(shape, 1) == []
    leave = PortableFiles.leave

    def cheating(files: PortableFiles, ending: Ending, results: Any) -> None:
        leave(files, cheat(ending), results)

    monkeypatch.setattr(PortableFiles, "leave", cheating)
    assert compare(shape, 1)
