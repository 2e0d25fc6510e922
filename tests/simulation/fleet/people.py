"""People who use a fleet: they submit, answer, cancel and retry, at any moment and not always well.

Each call is made by a process of its own, which may die.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from milecastle.app.application import App
from milecastle.app.results import Snapshot
from milecastle.errors import MilecastleError
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.testing import with_store
from tests.simulation.fleet.course import Course
from tests.simulation.fleet.processes import Process
from tests.simulation.fleet.timeline import SECOND
from tests.simulation.fleet.virtual_loop import Dead
from tests.simulation.people import place_of
from tests.simulation.random_shapes import INPUT, Tally

__all__ = ["FleetPeople"]

_PATIENCE = 300
"""For how many virtual seconds after the last fault runs may take to end."""


class FleetPeople:
    """Acts on the threads of a course. The rest is what its judge asks for."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.store = course.store
        self.ledger = course.ledger
        self.wrong = course.wrong
        self.branched: set[str] = set()
        self.threads = [f"t{number}" for number in range(course.random.randint(1, 3))]
        self.app = with_store(course.app, course.store)
        self._said = 0

    def act(self) -> None:
        """Do something, and something else later."""
        random = self.course.random
        if not self.course.troubles:
            return
        self._visit(random.choice(self.threads))
        self.course.timeline.after(random.uniform(0.05, 3.0), self.act)

    def _visit(self, thread: str) -> None:
        random, found = self.course.random, self._look(thread)
        chance = random.random()
        if found is None or chance < 0.1:
            self._call(lambda app: app.submit(INPUT, thread))
        elif chance < 0.15 and found.next:
            self._touch(thread, lambda app: app.cancel(thread))
        elif chance < 0.2:
            self._touch(thread, lambda app: app.retry(thread))
        elif chance < 0.25:
            self._call(lambda app: app.answer(thread, answers={"1.1:nobody/0": 1}))
        else:
            self._care(thread, found, random.random() < 0.5)

    def _care(self, thread: str, found: Snapshot[Tally] | None, some: bool = False) -> None:
        """What a careful person does about a thread that waits for one."""
        if found is None:
            self._call(lambda app: app.submit(INPUT, thread))
            return
        asking = [each for each in found.interrupts if each.asks]
        if asking:
            random = self.course.random
            chosen = random.sample(asking, random.randint(1, len(asking))) if some else asking
            self._answer(thread, chosen)
        elif found.status in ("interrupted", "failed", "cancelled"):
            self._touch(thread, lambda app: app.retry(thread))

    def _answer(self, thread: str, asking: list[Interrupt]) -> None:
        answers: dict[str, int] = {}
        said: dict[str, int] = {}
        for each in asking:
            self._said += 1
            answers[each.id] = said[place_of(each)] = self._said
        self._touch(thread, lambda app: app.answer(thread, answers=answers), said)

    def _touch(self, thread: str, act: Callable[[App[Tally]], Any], said: Any = None) -> None:
        """Do something that may take a run from its worker."""
        self._call(act, said)
        self.course.touched[thread] = self.course.timeline.now

    def _call(self, act: Callable[[App[Tally]], Any], said: Any = None) -> None:
        course = self.course
        course.happened["calls"] += 1
        process = Process(course, "client", said=said)
        app = with_store(course.app, process.connection, clock=process.clock)
        try:
            act(app)
        except Dead:
            course.happened["dead callers"] += 1
        except MilecastleError:
            course.happened["refused"] += 1

    def _look(self, thread: str) -> Snapshot[Tally] | None:
        writer, self.store.writer = self.store.writer, None
        try:
            known = ThreadKey("default", thread) in self.store.heads
            return self.app.state(thread) if known else None
        finally:
            self.store.writer = writer

    def finish(self) -> None:
        """Wait until every run has ended; care for those that wait for a person."""
        timeline, unfinished = self.course.timeline, self.threads
        for _ in range(_PATIENCE):
            timeline.run(timeline.now + SECOND)
            unfinished = [thread for thread in self.threads if not self._has_ended(thread)]
            if not unfinished:
                self._dismiss()
                return
        for thread in unfinished:
            key = ThreadKey("default", thread)
            line, runs = self.store.thread(key), self.store.runs(key)
            failures = [self.store.failure(key, run.run_id) for run in runs[:3]]
            self.wrong.append(f"a run was left behind: {line} {failures}")

    def _has_ended(self, thread: str) -> bool:
        line = self.store.thread(ThreadKey("default", thread))
        if line is not None and line.status in ("queued", "running", "sleeping"):
            return False  # a worker's turn
        found = self._look(thread)
        if found is not None and not found.next:
            return True
        self._care(thread, found)
        return False

    def _dismiss(self) -> None:
        """Drain every worker: none keeps a thread, none stays."""
        course = self.course
        course.size = 0
        times = [time for each in course.workers for time in (each.stopped_until, each.cut_until)]
        course.timeline.run(max(course.timeline.now, *times, 0) + 3 * SECOND)
        for process in list(course.workers):
            course.drain(process)
        course.timeline.run(course.timeline.now + 12 * SECOND)
        if course.workers:
            self.wrong.append("a worker did not drain")
        for info in course.claims.threads("default"):
            if info.worker:
                self.wrong.append("a thread that has ended is still claimed")
