"""A discrete-event simulation of steps on many databases, and what it says of large fleets.

What is modelled, and nothing else: a client computes a step, then a server does, both on the
processor cores of their machine, in the order in which they came; then the step waits for the log
of its database. A log is flushed for all who wait at that moment; who comes later waits for the
next flush. Flushes of several logs on one disk take longer, as measured.

The times of a step are measured by one client on one database (``benchmarks.scale_databases``);
how the rates of more clients and more databases follow from them is the simulation's answer, and
is compared with the real thing there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

Done = Callable[[], None]

Wait = Callable[[Done], None]
"""Something to wait for: it calls back when it is done."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one step. ``flush[n]`` is a flush while ``n`` others of the same disk go on."""

    client: float
    server: float
    flush: Sequence[float]


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many of each there are.

    ``client_cores`` is ``None`` if clients and servers share the cores of one machine.
    ``disks`` is how many disks the databases are spread over.
    """

    clients: int
    databases: int
    server_cores: int
    client_cores: int | None = None
    disks: int = 1


def rate(costs: Costs, fleet: Fleet, *, steps: int = 400) -> float:
    """Steps a second of the whole fleet, when each client makes so many, one after the other."""
    clock = _Clock()
    servers = _Cores(clock, fleet.server_cores)
    clients = servers if fleet.client_cores is None else _Cores(clock, fleet.client_cores)
    disks = [_Disk(clock, costs.flush) for _ in range(fleet.disks)]
    logs = [_Log(disks[number % fleet.disks]) for number in range(fleet.databases)]
    for number in range(fleet.clients):
        log = logs[number % fleet.databases]
        _Client(_steps(costs, clients, servers, log, steps)).go_on()
    clock.run()
    return fleet.clients * steps / clock.now


def _steps(
    costs: Costs, clients: _Cores, servers: _Cores, log: _Log, steps: int
) -> Generator[Wait]:
    for _ in range(steps):
        yield lambda done: clients.work(costs.client, done)
        yield lambda done: servers.work(costs.server, done)
        yield log.flush


@dataclass(slots=True)
class _Client:
    waits: Generator[Wait]

    def go_on(self) -> None:
        wait = next(self.waits, None)
        if wait is not None:
            wait(self.go_on)


@dataclass(slots=True)
class _Clock:
    now: float = 0.0
    _due: list[tuple[float, int, Done]] = field(default_factory=list[tuple[float, int, Done]])
    _numbers: count[int] = field(default_factory=count)

    def after(self, seconds: float, call: Done) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), call))

    def run(self) -> None:
        while self._due:
            self.now, _, call = heapq.heappop(self._due)
            call()


@dataclass(slots=True)
class _Cores:
    clock: _Clock
    free: int
    _queue: deque[tuple[float, Done]] = field(default_factory=deque[tuple[float, Done]])

    def work(self, seconds: float, done: Done) -> None:
        self._queue.append((seconds, done))
        self._start()

    def _start(self) -> None:
        while self.free and self._queue:
            seconds, done = self._queue.popleft()
            self.free -= 1
            self.clock.after(seconds, partial(self._end, done))

    def _end(self, done: Done) -> None:
        self.free += 1
        done()
        self._start()


@dataclass(slots=True)
class _Disk:
    clock: _Clock
    flush: Sequence[float]
    busy: int = 0

    def write(self, done: Done) -> None:
        seconds = self.flush[min(self.busy, len(self.flush) - 1)]
        self.busy += 1
        self.clock.after(seconds, lambda: self._end(done))

    def _end(self, done: Done) -> None:
        self.busy -= 1
        done()


@dataclass(slots=True)
class _Log:
    disk: _Disk
    flushing: bool = False
    _waiting: list[Done] = field(default_factory=list[Done])

    def flush(self, done: Done) -> None:
        self._waiting.append(done)
        if not self.flushing:
            self._start()

    def _start(self) -> None:
        group, self._waiting = self._waiting, []
        self.flushing = True
        self.disk.write(lambda: self._end(group))

    def _end(self, group: Sequence[Done]) -> None:
        self.flushing = False
        if self._waiting:
            self._start()
        for done in group:
            done()
