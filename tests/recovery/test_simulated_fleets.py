"""Real workers on virtual time: no seed breaks a promise, and planted bugs are found.

Workers die, are stopped, cut off and drained, their clocks are wrong, nodes block their loops, the
store fails, and hints are lost, late and doubled. ``MILECASTLE_FLEET_SEEDS`` says how many seeds
the long form takes (``just proof-fleet``); the short form takes the commit's (tests/seeds.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from milecastle.engine.effects import Effect
from milecastle.engine.run import Run
from milecastle.model.checkpoint import Source
from milecastle.model.keys import ThreadKey
from milecastle.stores.memory import MemoryStore
from milecastle.stores.memory.claims import Claims
from tests.recovery.simulating import main_fleet, simulate_fleets
from tests.seeds import seeds
from tests.simulation.collecting import collected_rarely
from tests.simulation.fleet.course import Course
from tests.simulation.fleet.simulate import simulate_fleet
from tests.simulation.progress import note_done, pieces
from tests.simulation.simulate import Violation

SEEDS = 200
PARTS = 2
PATIENCE = 300


@pytest.mark.requirement("F3")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_a_promise_of_the_fleet(part: int) -> None:
    happened, violations = simulate_fleets(seeds(SEEDS, part, PARTS))
    print(dict(happened))
    assert violations == []
    # A simulation in which nothing happens proves nothing.
    for what in ("crashes", "stops", "cuts", "drains", "jumps", "lost hints", "repeated"):
        assert happened[what] > SEEDS // PARTS // 10, what


@pytest.mark.slow
def test_no_seed_of_the_long_form_breaks_a_promise_of_the_fleet() -> None:
    count = int(os.environ.get("MILECASTLE_FLEET_SEEDS", "200000"))
    assert main_fleet(0, count, os.cpu_count() or 1) == 0


def test_a_seed_gives_the_same_fleet_each_time() -> None:
    for seed in range(5):
        assert simulate_fleet(seed) == simulate_fleet(seed)


def test_a_long_form_leaves_out_what_it_has_done_on_the_same_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Seen to fail with a file that every version of the code shares."""
    monkeypatch.setattr("tests.simulation.progress._ROOT", tmp_path)
    monkeypatch.setattr("tests.simulation.progress._digest", lambda: "this code")
    monkeypatch.setenv("MILECASTLE_RESUME", "--resume")
    note_done("fleets", range(10))
    assert list(pieces("fleets", 0, 25, 10)) == [range(10, 20), range(20, 25)]
    monkeypatch.setattr("tests.simulation.progress._digest", lambda: "another")
    assert next(iter(pieces("fleets", 0, 25, 10))) == range(10)
    monkeypatch.setattr("tests.simulation.progress._digest", lambda: "this code")
    monkeypatch.delenv("MILECASTLE_RESUME")
    assert next(iter(pieces("fleets", 0, 25, 10))) == range(10)


# -- bugs planted on purpose -----------------------------------------------------------------


def found(text: str, prepare: Callable[[Course], None] | None = None) -> None:
    """Look for a violation that says this; fails if some seeds do not show one."""
    for seed in collected_rarely(range(PATIENCE)):
        try:
            simulate_fleet(seed, prepare)
        except Violation as violation:
            if text in str(violation):
                print(f"found by seed {seed}: {violation}")
                return
    raise AssertionError(f"{PATIENCE} seeds did not show that {text}")


def test_a_fleet_without_a_reconciler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: MemoryStore, *given: float) -> int:
        return 0

    monkeypatch.setattr(MemoryStore, "reclaim", nothing)
    found("a run was left behind")


def test_a_takeover_without_its_entry_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker before it is not fenced out, and its run is never closed."""
    honest = Run._announce  # pyright: ignore[reportPrivateUsage]

    def silent(self: Run, source: Source) -> Generator[Effect, Any, None]:
        if source != "takeover" or self.plan.queues:
            yield from honest(self, source)

    monkeypatch.setattr(Run, "_announce", silent)
    found("a run was left as 'running'")


def test_a_wake_up_that_is_written_after_the_commit_is_found() -> None:
    def later(course: Course) -> None:
        course.wakes_later = True
        course.deadly = 0.02

    found("a run was left behind", later)


def test_a_claim_that_does_not_look_at_the_owner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_that_are_due(self: Claims, lanes: Sequence[str]) -> Iterator[tuple[ThreadKey, int]]:
        for key, line in vars(self)["_lines"].items():
            if line.lane in lanes and line.due_at is not None:
                yield key, line.due_at

    monkeypatch.setattr(Claims, "_waiting", all_that_are_due)
    found("nothing had happened")


def test_a_heartbeat_on_the_event_loop_is_found() -> None:
    """A node that blocks the loop costs its worker every thread."""

    def on_loop(course: Course) -> None:
        course.beats_on_loop = True

    found("nothing had happened", on_loop)
