"""A worker's options, and the state its claiming and running parts share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from milecastle.app.runner import Runner
from milecastle.errors import InvalidRequest
from milecastle.fleet.counters import Counters
from milecastle.fleet.durations import Durations
from milecastle.fleet.store_clock import StoreClock
from milecastle.model.policies import Settings
from milecastle.ports.claims import ClaimStore, one_cell
from milecastle.ports.clock import Clock
from milecastle.ports.limits import graph_of
from milecastle.ports.workers import SILENT
from milecastle.support.off_loop import StoreThreads

_THREADS = 4
"""Threads for store calls: its own, so a node in ``asyncio.to_thread`` delays no claim."""


class WorkerOptions(Settings):
    """A worker's options.

    ``concurrency`` is how many threads it runs at once. It looks for due threads at least every
    ``poll`` seconds, by default 1 if the store tells it of them and otherwise 0.2. It beats every
    ``heartbeat`` seconds; ``silent_after`` seconds without one, it has lost its threads. A run
    with which ``losses`` workers in a row were lost, without a step in between, is held as failed.
    It adopts threads of another version of its graphs that have been due for ``adopt_after``
    seconds while no worker served them, if they fit its code; ``None``: never.
    When it is told to stop, running nodes have ``grace`` seconds. A run that has not moved for
    ``stuck_after`` seconds is reported. Deliveries to hooks reach ``deliver_to``, each ``HOST`` or
    ``HOST:PORT``, also at addresses that are not public, and without TLS. It serves the threads in
    ``databases``, by their names in the map; empty: in all of the store.
    """

    concurrency: int = 100
    poll: float | None = None
    heartbeat: float = SILENT / 3
    silent_after: float = SILENT
    grace: float = 30.0
    losses: int = 5
    adopt_after: float | None = 1.0
    stuck_after: float = 600.0
    deliver_to: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()

    def _check(self) -> None:
        if self.concurrency < 1 or self.losses < 1:
            raise InvalidRequest(
                f"concurrency and losses must be at least 1, not {self.concurrency}, {self.losses}"
            )
        poll = 1.0 if self.poll is None else self.poll
        if not (poll > 0 and 0 < self.heartbeat < self.silent_after and self.grace >= 0):
            raise InvalidRequest(
                "poll and heartbeat must be above 0, silent_after above heartbeat, grace at least 0"
            )
        if not self.stuck_after > 0:
            raise InvalidRequest(f"stuck_after must be above 0, not {self.stuck_after}")


def _served(store: ClaimStore, databases: Sequence[str]) -> ClaimStore:
    if not databases:
        return store
    if store.cells is None:
        raise InvalidRequest(
            f"a worker can serve some databases of a map (shards.toml), and {type(store).__name__} "
            "is one database: leave out databases="
        )
    return one_cell(store.cells, databases)


class WorkerContext:
    def __init__(self, store: ClaimStore, options: WorkerOptions, ids: Clock) -> None:
        self.id = ids.new_id()
        self.store = store
        self.claims = _served(store, options.databases)
        self.options = options
        self.clock = StoreClock(self.claims, ids, self.ticks)
        self.counters = Counters()
        self.durations = Durations()
        self.runners: Mapping[str, Runner[Any]] = {}
        self.threads = StoreThreads(_THREADS)
        self.wake = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.main: asyncio.Task[Any] | None = None
        self.is_draining = False

    @property
    def is_leaving(self) -> bool:
        """True if it drains, or its own task is being cancelled with its runs'."""
        return self.is_draining or (self.main is not None and self.main.cancelling() > 0)

    @property
    def lanes(self) -> list[str]:
        return list(self.runners)

    def serving(self, lane: str) -> Runner[Any]:
        graph = graph_of(lane)
        return self.runners.get(lane) or next(
            runner for own, runner in self.runners.items() if graph_of(own) == graph
        )

    def ticks(self) -> float:
        return monotonic() if self.loop is None else self.loop.time()

    def on_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self.loop is not None:
                self.loop.call_soon_threadsafe(function)
