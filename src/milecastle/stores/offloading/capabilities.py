"""Offloading around a store that workers share, and around any other."""

from __future__ import annotations

from collections.abc import Sequence

from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.claims import (
    ClaimStore,
    LaneDepth,
    WaitingInput,
    WorkerInfo,
)
from milecastle.ports.limits import Limit
from milecastle.ports.store import (
    Store,
)
from milecastle.stores.offloading.objects import SharedObjects
from milecastle.stores.offloading.store import OffloadingStore

__all__ = ["offload"]


@checks_keys
class _Claiming(OffloadingStore):
    """An offloading store around one that workers share."""

    inner: ClaimStore

    def enqueue(
        self,
        record: RunRecord,
        mark: str,
        payload: bytes,
        *,
        unless: str | None = None,
        known: bool = False,
    ) -> str:
        """Let an input wait; what is large in it is stored first."""
        small = self.offloaded_input(record.key, payload)
        return self.inner.enqueue(record, mark, small, unless=unless, known=known)

    def inputs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[WaitingInput]:
        """The inputs that wait, restored."""
        return [
            self.restored_input(key, waiting) for waiting in self.inner.inputs(key, limit=limit)
        ]

    def beat(self, worker: WorkerInfo) -> None:
        """Record that a worker is alive."""
        self.inner.beat(worker)

    def retire(self, worker: str) -> int:
        """Forget a worker."""
        return self.inner.retire(worker)

    def workers(self) -> Sequence[WorkerInfo]:
        """All workers."""
        return self.inner.workers()

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Give due threads to a worker."""
        return self.inner.claim(worker, lanes, limit=limit)

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        """Make a thread due again."""
        return self.inner.give_back(worker, key, delay=delay)

    def reclaim(self, timeout: float | None = None) -> int:
        """Take the threads of lost workers."""
        return self.inner.reclaim(timeout)

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        """The threads that a worker has."""
        return self.inner.claimed(worker)

    def due_in(self, lanes: Sequence[str]) -> float | None:
        """In how many seconds a thread is due."""
        return self.inner.due_in(lanes)

    def now(self) -> int:
        """The time on the clock of the store."""
        return self.inner.now()

    def depths(self) -> Sequence[LaneDepth]:
        """How much is in each lane."""
        return self.inner.depths()

    def overdue(self, age: float) -> Sequence[str]:
        """The lanes that have waited for longer."""
        return self.inner.overdue(age)

    def limits(self) -> Sequence[Limit]:
        """What claims must not exceed."""
        return self.inner.limits()

    def set_limit(self, limit: Limit) -> None:
        """Set a limit."""
        self.inner.set_limit(limit)


def offload(store: Store, objects: SharedObjects) -> OffloadingStore:
    """The store with large values in ``objects``; workers share it if they share ``store``."""
    if isinstance(store, ClaimStore):
        return _Claiming(store, objects)
    return OffloadingStore(store, objects)
