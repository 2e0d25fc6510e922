"""``simulate_fleet``: real workers on virtual time, faults, people, and promises that must hold.

Besides what ``simulate`` promises for each thread:

- every run ends, as the model says, once the faults are over;
- a node is repeated only if something happened to its worker, or somebody took the run from it;
- no worker ends with an error, refuses to drain, or keeps a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from random import Random
from unittest.mock import patch

import msgspec
import msgspec.structs

from milecastle.app.application import App
from milecastle.errors import MilecastleError
from tests.simulation.fleet.course import Course
from tests.simulation.fleet.heartbeats import SimulatedHeartbeat
from tests.simulation.fleet.people import FleetPeople
from tests.simulation.fleet.shared_graphs import SharedBulk, storable_types
from tests.simulation.fleet.timeline import SECOND
from tests.simulation.fleet.virtual_loop import current_actor, simulated_thread
from tests.simulation.judge import judge
from tests.simulation.random_graphs import World, build
from tests.simulation.random_shapes import Member, Shape, Tally, random_shape
from tests.simulation.simulate import Violation

__all__ = ["simulate_fleet", "surroundings"]

_SHAPES = 500
_MEASURING = (
    *("drivers.host", "drivers.asynchronous", "drivers.loop_tasks"),
    *("fleet.heartbeat", "fleet.context", "fleet.claimer"),
)


def simulate_fleet(seed: int, prepare: Callable[[Course], None] | None = None) -> Mapping[str, int]:
    """Simulate one seed; what happened, by name. ``prepare`` may break something on purpose.

    Raises:
        Violation: a promise was broken.
    """
    random = Random(seed)
    shape, app, world = _ground(seed % _SHAPES)
    course = Course(shape, app, world, random)
    if prepare is not None:
        prepare(course)
    with surroundings(course):
        people = FleetPeople(course)
        try:
            _go(course, people)
            course.wrong += judge(shape, people.app, people)
        except MilecastleError as error:
            course.wrong.append(f"a thread is of no use any more ({type(error).__name__}: {error})")
        finally:
            for process in course.workers[:]:
                process.die()
    problems = tuple(dict.fromkeys(course.wrong))
    if problems:
        raise Violation(seed, problems)
    course.happened["effects"] = course.effects
    return course.happened


def _go(course: Course, people: FleetPeople) -> None:
    random, timeline = course.random, course.timeline
    for _ in range(course.size):
        timeline.after(random.uniform(0.0, 2.0), course.start_worker)
    timeline.after(0.0, people.act)
    timeline.after(random.uniform(0.0, 6.0), course.disturb)
    timeline.run(timeline.now + random.randint(8, 25) * SECOND)
    course.calm_down()
    people.finish()


class _Errors(logging.Handler):
    """What workers log as an error is a violation, unless it is about a run that they hold."""

    def __init__(self, wrong: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._wrong = wrong

    def emit(self, record: logging.LogRecord) -> None:
        message, process = record.getMessage(), current_actor()
        if process is not None and process.is_dead:
            return
        if record.exc_info or "raised" in message:
            self._wrong.append(f"{message} ({record.exc_info and record.exc_info[1]!r})")


@contextmanager
def surroundings(course: Course) -> Generator[None, None, None]:
    """Virtual time and virtual threads, for as long as this lasts."""
    log, handler = logging.getLogger("milecastle.fleet"), _Errors(course.wrong)
    level, spread = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    log.propagate = False
    try:
        with ExitStack() as patches:
            for module in _MEASURING:
                name = f"milecastle.{module}.monotonic"
                patches.enter_context(patch(name, course.timeline.monotonic))
            patches.enter_context(
                patch("milecastle.drivers.asynchronous.get_ident", simulated_thread)
            )
            patches.enter_context(patch("milecastle.fleet.worker.Heartbeat", SimulatedHeartbeat))
            patches.enter_context(patch("milecastle.fleet.worker.Bulk", SharedBulk))
            patches.enter_context(patch("milecastle.codec.registry.storable_types", storable_types))
            yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = spread


@lru_cache(maxsize=_SHAPES)
def _ground(number: int) -> tuple[Shape, App[Tally], World]:
    """Compiling costs more than running: graphs are made once."""
    random = Random(number)
    shape = _with_async(random_shape(random), random)
    world = World(nap=2.0, waits=True)
    return shape, build(shape, world), world


def _with_async(shape: Shape, random: Random) -> Shape:
    """More nodes on the event loop than in other simulations."""
    members = [_perhaps_async(member, random) for member in shape.members]
    return msgspec.structs.replace(shape, members=members)


def _perhaps_async(member: Member, random: Random) -> Member:
    may = member.kind in ("plain", "once", "ask") and random.random() < 0.3
    return msgspec.structs.replace(member, is_async=True) if may else member
