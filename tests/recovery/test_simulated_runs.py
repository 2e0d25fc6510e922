"""Random graphs, faults and interleavings: no seed breaks a promise, and planted bugs are found.

``MILECASTLE_SEEDS`` says how many seeds the long form takes (``just proof``). The short form takes
those of the commit (tests/seeds.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from milecastle.engine.reserved_channels import ANSWERS, RESERVED
from milecastle.engine.saving import Saver
from milecastle.model.checkpoint import TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import TornStore
from milecastle.testing.faulty_stores import Part
from tests.recovery.simulating import main, simulate_all
from tests.seeds import seeds
from tests.simulation.simulate import Violation, simulate

SEEDS = 200
PATIENCE = 300


def test_no_seed_breaks_a_promise() -> None:
    happened, violations = simulate_all(seeds(SEEDS))
    print(dict(happened))
    assert violations == []
    # A simulation in which nothing happens proves nothing.
    for what in ("crashes", "conflicts", "failures", "answers", "forks", "updates"):
        assert happened[what] > SEEDS // 10, what


@pytest.mark.parametrize("seed", [4133, 4940, 16337, 49633, 55264])
def test_a_seed_that_once_showed_a_bug_does_not_any_more(seed: int) -> None:
    simulate(seed)


@pytest.mark.slow
def test_no_seed_of_the_long_form_breaks_a_promise() -> None:
    count = int(os.environ.get("MILECASTLE_SEEDS", "200000"))
    assert main(0, count, os.cpu_count() or 1) == 0


def test_a_seed_gives_the_same_simulation_each_time() -> None:
    for seed in range(20):
        assert simulate(seed) == simulate(seed)


# -- bugs planted on purpose -----------------------------------------------------------------


def found(store: Callable[[], Store] | None = None) -> Violation:
    """The first violation; fails if there is none within a few hundred seeds."""
    for seed in range(PATIENCE):
        try:
            simulate(seed, store=store)
        except Violation as violation:
            print(f"found by seed {seed}: {violation}")
            return violation
    raise AssertionError(f"{PATIENCE} seeds did not find the bug")


@pytest.mark.parametrize("late", ["entries", "results", "runs"])
def test_a_commit_that_is_not_atomic_is_found(late: Part) -> None:
    assert found(lambda: TornStore(MemoryStore(), late={late})).problems


def test_an_answer_that_is_not_tied_to_its_branch_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_step_only(parent: ThreadKey, place: str, task: str) -> ThreadKey:
        step = place.partition(".")[2]
        return ThreadKey(parent.tenant, f"{parent.thread}\x1f{step}\x1f{task}")

    monkeypatch.setattr("milecastle.app.runs.starting.child_key", by_step_only)
    assert "that nobody gave on this branch" in str(found_like("nobody gave on this branch"))


def test_an_answer_that_outlives_its_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    left = tuple(name for name in RESERVED if name != ANSWERS)
    monkeypatch.setattr("milecastle.engine.advancing.RESERVED", left)
    assert found().problems


def test_a_sibling_result_that_is_not_saved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    save = Saver.results

    def forget(self: Saver, kept: list[TaskResult]) -> Batch:
        return save(self, [row for row in kept if ":" not in row.task])

    monkeypatch.setattr(Saver, "results", forget)
    assert "the result of a finished sibling was not saved" in str(found())


def found_like(text: str) -> Violation:
    """The first violation that says this; fails if there is none within a few hundred seeds."""
    for seed in range(PATIENCE):
        try:
            simulate(seed)
        except Violation as violation:
            if text in str(violation):
                print(f"found by seed {seed}: {violation}")
                return violation
    raise AssertionError(f"{PATIENCE} seeds did not show that {text}")
