"""Offloading around a store workers share, and around any other."""

from __future__ import annotations

from collections.abc import Sequence

from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import ClaimStore
from milecastle.ports.limits import Limit
from milecastle.ports.store import Store
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.offloading.objects import SharedObjects
from milecastle.stores.offloading.store import OffloadingStore


@checks_keys
class _Claiming(OffloadingStore):
    inner: ClaimStore

    def beat(self, worker: WorkerInfo) -> None:
        self.inner.beat(worker)

    def retire(self, worker: str) -> int:
        return self.inner.retire(worker)

    def workers(self) -> Sequence[WorkerInfo]:
        return self.inner.workers()

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        return self.inner.claim(worker, lanes, limit=limit)

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        return self.inner.give_back(worker, key, delay=delay)

    def reclaim(self, timeout: float | None = None) -> int:
        return self.inner.reclaim(timeout)

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        return self.inner.claimed(worker)

    def due_in(self, lanes: Sequence[str]) -> float | None:
        return self.inner.due_in(lanes)

    def now(self) -> int:
        return self.inner.now()

    def depths(self) -> Sequence[LaneDepth]:
        return self.inner.depths()

    def overdue(self, age: float) -> Sequence[str]:
        return self.inner.overdue(age)

    def limits(self) -> Sequence[Limit]:
        return self.inner.limits()

    def set_limit(self, limit: Limit) -> None:
        self.inner.set_limit(limit)


def offload(store: Store, objects: SharedObjects) -> OffloadingStore:
    if isinstance(store, ClaimStore):
        return _Claiming(store, objects)
    return OffloadingStore(store, objects)
