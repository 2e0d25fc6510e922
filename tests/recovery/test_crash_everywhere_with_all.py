"""A crash anywhere in a graph that uses everything together: nothing is lost, skipped or repeated.

Each crash is tried with a few seeds in memory. On stores that outlive the process every fifth is
tried, and each by the long form: at which effect a run can crash does not depend on its store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import msgspec.structs
import pytest

from milecastle import END, START, CheckpointConfig, InvalidRequest, StateGraph, Store, interrupt
from milecastle.engine.reserved_channels import ANSWERS
from milecastle.engine.run import Run
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing import (
    CrashMismatch,
    CrashPoint,
    TornStore,
    WrappedStore,
    crash,
    crash_everywhere,
)
from tests.every_store import POSTGRES, Stores
from tests.recovery.everything import INPUT, answer, everything

SLOW = pytest.mark.slow
DURABLE = ["jsonl", "sqlite", pytest.param("postgres", marks=POSTGRES)]

all_points = crash._points  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


def prove(store: Any, seed: int, *, every: int = 1, interval: int = 1) -> str:
    """Crash at every effect, or at some: before one, and ``every`` places later after another."""
    app, world = everything(checkpoint=CheckpointConfig(store=store, interval=interval))

    def some_points(effects: int) -> list[CrashPoint]:
        return all_points(effects)[::every]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash, "_points", some_points)
        report = crash_everywhere(app, INPUT, answer=answer, seed=seed)
    assert report.effects > 50
    assert report.crashes == len(range(0, 2 * report.effects, every))
    # Between doing a thing and recording it lies one crash: it may be done twice, never thrice.
    assert set(world.done.values()) == {1, 2}
    return str(report)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=SLOW) for n in (2, 3))])
def test_a_crash_anywhere_changes_nothing(seed: int) -> None:
    print(prove("memory://", seed))


@pytest.mark.parametrize("interval", [2, 3])
def test_a_crash_anywhere_repeats_nothing_recorded_if_steps_are_skipped(interval: int) -> None:
    """Steps may run again. Fails if a task can leave a row before its step has an entry."""
    print(prove("memory://", seed=1, interval=interval))


@pytest.mark.parametrize("kind", DURABLE)
def test_a_crash_here_and_there_changes_nothing_on_a_durable_store(
    kind: str, stores: Stores
) -> None:
    print(prove(stores.open(kind), seed=1, every=5))


@SLOW
@pytest.mark.parametrize("kind", DURABLE)
def test_a_crash_anywhere_changes_nothing_on_a_durable_store(kind: str, stores: Stores) -> None:
    print(prove(stores.open(kind), seed=1))


def test_a_graph_that_asks_needs_somebody_to_answer() -> None:
    app, _ = everything()
    with pytest.raises(InvalidRequest, match="pass answer="):
        crash_everywhere(app, INPUT)


# -- what must be found out ------------------------------------------------------------------


def mismatch(store: Store | None = None) -> str:
    app, _ = everything(store=store)
    with pytest.raises(CrashMismatch) as raised:
        crash_everywhere(app, INPUT, answer=answer, seed=1)
    return "; ".join(map(str, raised.value.report.mismatches))


def test_a_record_that_is_lost_is_found_out() -> None:
    found = mismatch(TornStore(MemoryStore(), late={"results"}))
    assert "recorded side effects were repeated: 1?plan/plan" in found


def test_the_run_of_a_subgraph_that_is_left_open_is_found_out() -> None:
    class Sloppy(WrappedStore):
        """Does not keep that a run of a subgraph has ended."""

        def commit(self, batch: Batch) -> None:
            if "\x1f" in batch.key.thread and not (batch.entries and batch.entries[-1].next):
                batch = msgspec.structs.replace(batch, runs=())
            super().commit(batch)

    assert "a run of a subgraph was left as 'running'" in mismatch(Sloppy(MemoryStore()))


class Asked(TypedDict):
    name: str


def test_an_answer_that_is_not_kept_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Any) -> None:
        if self.plan.answers:
            progress = self.progress
            progress.hide(ANSWERS, {**progress.reserved.get(ANSWERS, {}), **self.plan.answers})

    monkeypatch.setattr(Run, "_end_waits", forget)
    graph = StateGraph(Asked)
    graph.add_node("ask", lambda: {"name": interrupt("name?", answer=str)})
    graph.add_edges(START, "ask", END)
    with pytest.raises(CrashMismatch, match="was asked again after its answer was acknowledged"):
        crash_everywhere(graph.compile(), {"name": ""}, answer=lambda found: "Ada")
