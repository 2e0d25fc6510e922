"""``simulate``: a random graph, random faults, random processes, and the promises that must hold.

One seed decides everything: the graph, when the store fails, which process continues, where one
dies, what people do meanwhile (answer, also wrongly; wake a sleeper, also too early; fork, update,
start again). Then all calms down, every thread is brought to its end as a careful user would,
and it is judged:

- every acknowledged checkpoint is there, once, without gaps, in the threads of subgraphs too;
- each thread ends as the model says for its own branch: no step skipped, none applied twice, no
  answer of another branch;
- no finished task ran again, no recorded step was done again, by a process that could know;
- nobody wrote after a commit that failed, or after being superseded;
- what was refused left the thread as it was; no run is left open, nothing is left over;
- a thread that ended, called again with its input, returns its result and runs nothing.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any

import msgspec

from milecastle.app.application import App
from milecastle.errors import MilecastleError
from milecastle.testing import with_store
from milecastle.testing.clock import ManualClock
from tests.simulation.judge import judge
from tests.simulation.people import People
from tests.simulation.random_graphs import World, build
from tests.simulation.random_shapes import Shape, Tally, random_shape
from tests.simulation.shaky_store import ShakyStore

__all__ = ["Ground", "SimulationReport", "Violation", "simulate"]

_SHAPES = 2_000


class Violation(AssertionError):
    """A promise was broken. The seed shows it again."""

    def __init__(self, seed: int, problems: tuple[str, ...]) -> None:
        super().__init__(seed, problems)
        self.seed = seed
        self.problems = problems

    def __str__(self) -> str:
        return f"seed {self.seed}: {'; '.join(self.problems)}"


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one simulation."""

    effects: int
    crashes: int
    conflicts: int
    failures: int
    answers: int
    forks: int
    updates: int
    threads: int


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """A graph with what it stands on; swept before each simulation."""

    shape: Shape
    app: App[Tally]
    store: ShakyStore
    clock: ManualClock
    world: World


def simulate(seed: int, *, store: Any = None) -> SimulationReport:
    """Simulate one seed; ``store`` makes the store inside, a memory store by default.

    Raises:
        Violation: a promise was broken.
    """
    random = Random(seed)
    ground = _ground(seed % _SHAPES)
    ground.clock.reset()
    ground.store.reset(random, random.choice((0.0, 0.02, 0.1)), store() if store else None)
    people = People(ground.shape, ground.app, ground.store, ground.clock, ground.world, random)
    try:
        for _ in range(random.randint(4, 40)):
            people.act()
        people.calm_down()
        people.wrong += judge(ground.shape, ground.app, people)
    except MilecastleError as error:
        people.wrong.append(f"a thread is of no use any more ({type(error).__name__}: {error})")
    problems = tuple(dict.fromkeys(people.wrong))
    if problems:
        raise Violation(seed, problems)
    return SimulationReport(
        effects=people.effects,
        crashes=people.crashes,
        conflicts=people.conflicts,
        failures=people.failures,
        answers=people.answers,
        forks=people.forks,
        updates=people.updates,
        threads=len(people.threads),
    )


@lru_cache(maxsize=_SHAPES)
def _ground(number: int) -> Ground:
    """Compiling costs more than running: graphs are made once."""
    shape = random_shape(Random(number))
    store, clock, world = ShakyStore(), ManualClock(), World()
    app = build(shape, world, store)
    app = with_store(app, store, clock=clock)
    return Ground(shape=shape, app=app, store=store, clock=clock, world=world)
