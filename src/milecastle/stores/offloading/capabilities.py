"""What an offloading store can do besides ``Store``: what the store inside can, and no more.

Each port has a class here; ``offload`` combines those that the store inside offers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Generic, Protocol, TypeVar

from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.claims import (
    ClaimStore,
    LaneDepth,
    WaitingInput,
    WorkerInfo,
)
from milecastle.ports.limits import Limit
from milecastle.ports.maintenance import Check, Inspected, Maintenance, Pending, Repaired, Unopened
from milecastle.ports.store import (
    Store,
)
from milecastle.stores.offloading.objects import SharedObjects
from milecastle.stores.offloading.store import OffloadingStore

__all__ = ["offload"]

Inner = TypeVar("Inner", bound=Store)


class _Around(OffloadingStore, Generic[Inner]):
    """An offloading store around one that offers a port."""

    inner: Inner


@checks_keys
class _Claiming(_Around[ClaimStore]):
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


class _MigratedStore(Store, Unopened, Protocol):
    """A store that has tables to migrate."""


class _MaintainedStore(Store, Maintenance, Protocol):
    """A store that can check what is below its threads."""


class _Migrating(_Around[_MigratedStore]):
    def pending_migrations(self) -> Pending | None:
        """Which migrations are missing."""
        return self.inner.pending_migrations()

    def migrate(self) -> str:
        """Apply what is missing."""
        return self.inner.migrate()

    def examine(self) -> Sequence[Check]:
        """Further checks of the store's location."""
        return self.inner.examine()


class _Maintaining(_Around[_MaintainedStore]):
    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        """What is wrong below each thread; objects are verified when the thread is read."""
        return self.inner.verify(tenant, threads)

    def repair(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Repaired]:
        """Each thread, repaired if that loses nothing."""
        return self.inner.repair(tenant, threads)


_PORTS: tuple[tuple[type, type[OffloadingStore]], ...] = (
    (ClaimStore, _Claiming),
    (Maintenance, _Maintaining),
    (Unopened, _Migrating),
)


def offload(store: Store, objects: SharedObjects) -> OffloadingStore:
    """The store with large values in ``objects``; it offers the ports that ``store`` offers."""
    ports = tuple(isinstance(store, port) for port, _ in _PORTS)
    return _class_with(ports)(store, objects)


@cache
def _class_with(ports: tuple[bool, ...]) -> type[OffloadingStore]:
    """One class for each combination of ports, because ports are looked up by class."""
    bases = [made for offered, (_, made) in zip(ports, _PORTS, strict=True) if offered]
    return type("OffloadingStore", (*bases, OffloadingStore), {})
