"""Claims: how workers share a store's threads.

A thread is the fleet's if its line in the index names a *lane*: a graph and its fingerprint. The
commit making a run necessary writes ``due_at`` into that line, so no wake-up can be lost.

Rules for every store with this port, checked by ``milecastle.testing.ClaimContract``:

1. A thread is *due* if its line has a lane, a ``due_at`` in the past, and no worker. Committing a
   line with ``due_at=0`` makes it due at once: the store replaces 0 by the time on its own clock,
   and a negative number by the time coming so many microseconds later.
2. ``claim`` writes the worker into the lines of due threads, each by one comparison: of two claims
   of one thread, one gets it. A line stays claimed until a commit writes another line, until it is
   given back, or until ``reclaim`` finds its worker is gone. If ``claim`` raises, its outcome
   is unknown: ``claimed`` lists the worker's threads.
3. A claim is not a fence. It decides who tries; the log decides who may write. A worker that lost
   its claim is refused by the log once another run has written its first entry.
4. A worker is alive while it calls ``beat``, which it does before its first claim. How long it may
   be silent is in its heartbeat, and everybody goes by that. Only the store's clock is compared:
   with itself. It does not go back.
5. ``reclaim`` makes threads due at a whole second, and nothing else does so on purpose: whoever
   claims such a thread knows a worker was lost with it (``was_lost``). A thread whose own time
   is a whole second looks the same, which costs one log entry.
6. If more is due than a claim may take, it is shared as ``milecastle.ports.fairness`` says: one of
   each tenant's lane in turn, of these one of each limit key in turn, those with the higher
   priority first, then those due first.
   It may get less than it asked for, though more is due; something due it gets.
7. Claiming costs as much as it takes, regardless of sleeping, queued or ended threads.
8. Limits hold as ``milecastle.ports.limits`` says, also if many claim at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic_ns, time_ns
from typing import Protocol, runtime_checkable

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.batch import Batch
from milecastle.ports.cells import Cells
from milecastle.ports.limits import Limit
from milecastle.ports.mailbox import INPUTS, StoredMessage
from milecastle.ports.reading import FleetReader
from milecastle.ports.store import Store
from milecastle.ports.workers import WorkerInfo

_SECOND = 1_000_000


@runtime_checkable
class ClaimStore(Store, FleetReader, Protocol):
    """A store whose threads workers can share. Times are in microseconds since 1970."""

    def beat(self, worker: WorkerInfo) -> None:
        """Record a worker as alive, with the lanes it serves."""
        ...

    def retire(self, worker: str) -> int:
        """Forget a worker, and give all its threads back; return their number.

        A thread that is just being committed may be left out: ``reclaim`` finds it.
        """
        ...

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Give due threads in these lanes to a worker; their lines as they are now.

        Ordered by due time. ``InvalidRequest`` if the worker's id is empty.
        """
        ...

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        """Make a thread due again after ``delay`` seconds; ``False`` if the worker lacks it."""
        ...

    def reclaim(self, timeout: float | None = None) -> int:
        """Take the threads of all workers that are unknown or were silent for too long.

        ``timeout``: allowed seconds without a heartbeat, instead of their heartbeats' limit.
        These threads become due at once, as ``lost_at`` says; returns their number. The workers are
        forgotten.
        """
        ...

    def due_in(self, lanes: Sequence[str]) -> float | None:
        """Seconds until a thread in these lanes is due: 0 or less if one is due now.

        ``None`` if none has a time.
        """
        ...

    def now(self) -> int:
        """The store's time, by which threads become due."""
        ...

    def overdue(self, age: float) -> Sequence[str]:
        """The lanes with a thread that has been due for longer than so many seconds.

        The cost depends on the number of lanes, not on their contents.
        """
        ...

    def limits(self) -> Sequence[Limit]:
        """Limits for claims, by graph, tenant and key."""
        ...

    def set_limit(self, limit: Limit) -> None:
        """Set the limit for a graph, a tenant and a key, replacing the one they had.

        An empty limit is removed. A rate's period is not begun again.
        """
        ...


def system_time() -> int:
    """This machine's time in microseconds: the clock for stores without a server."""
    return time_ns() // 1000


class SteadyTime:
    """The system clock, except that it does not go back.

    After the clock was set back, it continues from where it was, a little slower than the clock,
    until that has caught up. ``seen``: a past time.
    """

    def __init__(self, seen: int = 0, source: Callable[[], int] = system_time) -> None:
        self._source = source
        self._last, self._ticks = seen, monotonic_ns()
        self._is_ahead: bool = False
        self._lock = Lock()

    def __call__(self) -> int:
        with self._lock:
            system, ticks = self._source(), monotonic_ns()  # in this order it is never ahead
            passed = (ticks - self._ticks) // 1000
            least: int = self._last + (passed * 9 // 10 if self._is_ahead else passed)
            self._is_ahead = least > system
            self._last, self._ticks = max(least, system), ticks
            return self._last


def one_cell(cells: Cells, names: Sequence[str]) -> ClaimStore:
    """The store whose claims are those of some databases."""
    found = cells.serving(names)
    if not isinstance(found, ClaimStore):
        raise TypeError(f"{type(found).__name__} has no claims")
    return found


def unserved_databases(store: Store, workers: Sequence[WorkerInfo]) -> tuple[str, ...]:
    """A map's databases in which none of these workers looks for threads."""
    if store.cells is None:
        return ()
    running = [worker for worker in workers if not (worker.is_gone or worker.draining)]
    served = {name for worker in running for name in worker.databases}
    return tuple(name for name in store.cells.names if name not in served)


def serves(store: Store, worker: WorkerInfo, key: ThreadKey) -> bool:
    """True if a worker looks for threads where this one is."""
    cells = store.cells
    return cells is None or not worker.databases or cells.of(key) in worker.databases


def lost_at(now: int) -> int:
    """Due time for a thread whose worker was lost by now."""
    return now - now % _SECOND


def was_lost(info: ThreadInfo) -> bool:
    return info.due_at is not None and info.due_at % _SECOND == 0


def require_worker(id: str) -> None:
    """Refuse an empty id: an index row without a worker has that."""
    if not id:
        raise InvalidRequest("a worker needs an id that is not empty")


def waiting_inputs(
    store: Store, key: ThreadKey, limit: int | None = None
) -> Sequence[StoredMessage]:
    mailbox = store.mailbox
    return () if mailbox is None else mailbox.unread(key, topic=INPUTS, limit=limit)


def is_due(batch: Batch) -> bool:
    line = batch.thread
    return line is not None and line.due_at == 0 and not line.worker


def dated(batch: Batch, now: int) -> Batch:
    """The batch with a due time filled in: now, or some microseconds later."""
    line = batch.thread
    if line is None or line.due_at is None or line.due_at > 0:
        return batch
    line = msgspec.structs.replace(line, due_at=now - line.due_at)
    return msgspec.structs.replace(batch, thread=line)
