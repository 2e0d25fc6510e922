"""Simulated processes: each has a connection to the one store, a clock of its own, and bad luck.

Every call of the store passes the connection: there others get their turn, the process may die,
before the call or after it, and the call may fail, with or without an effect.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from typing import TYPE_CHECKING, Any, cast

import msgspec.structs

from milecastle.errors import StoreError, Unavailable
from milecastle.ports.claims import ClaimStore, is_due
from milecastle.ports.notifying import Listen
from milecastle.ports.reading import FleetReader, StoreReader
from milecastle.ports.store import Batch, Capabilities, Store
from tests.simulation.fleet.timeline import SECOND
from tests.simulation.fleet.virtual_loop import Dead, VirtualLoop
from tests.simulation.shaky_store import Writer

if TYPE_CHECKING:
    from tests.simulation.fleet.course import Course

__all__ = ["Connection", "Process", "ProcessClock"]


_MEMORY = 10 * SECOND
"""For how long a worker may suffer from what happened to it: its heartbeats were missed."""


class ProcessClock:
    """The clock of a machine: it is set wrongly, and runs too fast or too slowly."""

    def __init__(self, course: Course, ahead: float, drift: float) -> None:
        self._course = course
        self._began = course.timeline.now
        self._drift = drift
        self.ahead = ahead

    def now(self) -> int:
        """Microseconds since 1970, as this machine believes."""
        now = self._course.timeline.now
        return now + round(self.ahead * SECOND + (now - self._began) * self._drift)

    def monotonic(self) -> int:
        """Microseconds that pass, too fast or too slowly; nobody sets this clock."""
        return self.now() - round(self.ahead * SECOND)

    def new_id(self) -> str:
        """An id that no other process makes."""
        return self._course.new_id()


class Process:
    """A process, as the world treats it.

    ``disturbed_at`` is when something last happened to it that excuses the loss of its threads.
    """

    connects: type[Connection]

    def __init__(self, course: Course, name: str, *, said: Any = None) -> None:
        random = course.random
        self.course = course
        self.name = name
        self.is_dead = False
        self.stopped_until = 0
        self.cut_until = 0
        self.disturbed_at = 0
        self.beating_since: int | None = None
        self.writer = Writer(said, {}, set())
        self.bulks: dict[str, Any] = {}
        ahead = random.choice((0.0, 0.0, random.uniform(-20, 20)))
        self.clock = ProcessClock(course, ahead, random.choice((0.0, 0.0, -0.01, 0.01)))
        self.connection = cast("ClaimStore", self.connects(self))
        self.loop = VirtualLoop(course.timeline, self)

    @property
    def now(self) -> int:
        return self.course.timeline.now

    def disturb(self) -> None:
        """Something happened to it."""
        self.disturbed_at = max(self.disturbed_at, self.now)

    def is_excused(self, since: int) -> bool:
        """Whether something has happened to it since then that may cost it its threads."""
        slow = self.beating_since is not None and self.now - self.beating_since > 2 * SECOND
        return self.is_dead or self.disturbed_at >= since - _MEMORY or slow

    def die(self) -> None:
        """kill -9."""
        if not self.is_dead:
            self.is_dead = True
            self.course.tell(self, "DIES")
            self.course.happened["crashes"] += 1
            self.course.listeners.pop(self, None)
            self.loop.bury()

    def stop(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        self.stopped_until = self.now + round(seconds * SECOND)
        self.disturbed_at = max(self.disturbed_at, self.stopped_until)

    def cut_off(self, seconds: float) -> None:
        """It cannot reach the store for a while."""
        self.cut_until = self.now + round(seconds * SECOND)
        self.disturbed_at = max(self.disturbed_at, self.cut_until)


def _passing(name: str) -> Callable[..., Any]:
    def passed(self: Connection, *given: Any, **named: Any) -> Any:
        return self.call(name, *given, **named)

    passed.__name__ = name
    return passed


class Hearing:
    """A process that listens."""

    is_connected = True

    def __init__(self, process: Process) -> None:
        self._process = process

    def close(self) -> None:
        self._process.course.listeners.pop(self._process, None)


class Connection(Capabilities):
    """What a process sees of the store: each method of the port, and the bell."""

    blocking = True
    rollup_after = None

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def listen(self) -> Listen:
        """Ring for this process, as far as the bell can be relied upon: not at all."""
        return self._listen

    def _listen(self, heard: Callable[[], None]) -> Hearing:
        self.process.course.listeners[self.process] = heard
        return Hearing(self.process)

    def call(self, name: str, *given: Any, **named: Any) -> Any:
        """Call the store, if nothing comes in between."""
        process, course = self.process, self.process.course
        random = course.random
        self._pass_time()
        fails = course.faulty and random.random() < course.faulty
        refused = process.cut_until > process.now or (fails and random.random() < 0.5)
        if refused:
            self._failed(name)
            raise Unavailable(f"{name} failed on purpose (refused)")
        returned = self._perform(name, given, named)
        if course.trace is not None:
            course.tell(process, name, _brief(given), named or "", "->", _brief((returned,)))
        if fails:
            self._failed(name)
            raise Unavailable(f"{name} failed on purpose (unknown)")
        self._pass_time()
        if name == "commit":
            course.ledger.committed(given[0])
        return returned

    def _perform(self, name: str, given: Any, named: Any) -> Any:
        process, course = self.process, self.process.course
        if name == "commit":
            return self._commit(given[0])
        server = course.store if name in _LOGS else course.claims
        course.store.writer = process.writer
        try:
            return getattr(server, name)(*given, **named)
        finally:
            course.store.writer = None

    def _commit(self, batch: Batch) -> None:
        process, course = self.process, self.process.course
        late: Batch | None = None
        line = batch.thread if course.wakes_later else None
        if line is not None and line.due_at is not None and not line.worker:
            late, line = batch, msgspec.structs.replace(line, due_at=None)
            batch = msgspec.structs.replace(batch, thread=line)
        process.writer.failed.clear()  # another segment of the same process may write
        course.store.writer = process.writer
        try:
            course.store.commit(batch)
        except StoreError:
            course.happened["conflicts"] += 1
            raise
        finally:
            course.store.writer = None
        course.committed(batch)
        if late is not None:
            self._pass_time()
            head = batch.head + len(batch.entries)
            wake = Batch(key=batch.key, head=head, thread=late.thread)
            course.store.commit(wake)
        if is_due(late or batch):
            course.ring()

    def _failed(self, name: str) -> None:
        self.process.course.happened["failures"] += 1
        self.process.course.tell(self.process, "FAILED", name)
        self.process.disturb()

    def _pass_time(self) -> None:
        """Others continue, and the process may be stopped or dead when it is its turn again."""
        process, course = self.process, self.process.course
        timeline = course.timeline
        if process.is_dead:
            raise Dead
        course.effects += 1
        if course.random.random() < 0.3:
            timeline.pass_time(process.now + round(timeline.delay() * SECOND))
        if process.stopped_until > process.now:
            timeline.pass_time(process.stopped_until)
        if course.deadly and course.random.random() < course.deadly:
            process.die()
        if process.is_dead:
            raise Dead


Process.connects = Connection


def _brief(given: tuple[Any, ...]) -> str:
    parts: list[str] = []
    for value in given:
        if isinstance(value, Batch):
            entries = [f"{entry.seq}:{entry.source}:{entry.step}" for entry in value.entries]
            rows = [result.task for result in value.results]
            line = value.thread
            state = f"{line.status} due {line.due_at} of {line.worker[-3:]}" if line else ""
            parts.append(f"{value.key.thread!r} at {value.head} {entries} {rows} {state}")
        else:
            parts.append(repr(value)[:150])
    return ", ".join(parts)


def _methods(port: Any) -> list[str]:
    members = cast("dict[str, Any]", vars(port))
    return [name for name, value in members.items() if name[0] != "_" and isfunction(value)]


_LOGS = frozenset((*_methods(StoreReader), *_methods(Store)))

for _name in (*_LOGS, *_methods(FleetReader), *_methods(ClaimStore)):
    setattr(Connection, _name, _passing(_name))
