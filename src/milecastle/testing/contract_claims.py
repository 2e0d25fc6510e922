from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec.structs
import pytest

from milecastle.model.run import Owner, ThreadInfo
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.ports.workers import WorkerInfo
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.entries import Writer, a_key

LANE = "graph@3f3f"
FAR = 2**53
"""A time that does not come."""


class ClaimHooks(ContractHooks):
    """Hooks for a store workers share."""

    @abstractmethod
    def open_store(self) -> ClaimStore: ...

    @abstractmethod
    def reopen(self, store: Store) -> ClaimStore:
        """Open the same data again, as after a crash: ``store`` was not closed before."""

    @pytest.fixture
    def store(self) -> Iterator[ClaimStore]:
        """One test's store; it is closed afterwards."""
        store = self.open_store()
        try:
            yield store
        finally:
            store.close()

    def wait(self, seconds: float) -> None:
        """Let the store's clock move on."""
        time.sleep(seconds)


def a_worker(id: str, **changes: Any) -> WorkerInfo:
    owner = Owner(host="wall", boot_id="b" * 36, pid=4711, started="17")
    worker = WorkerInfo(id=id, owner=owner, lanes=(LANE,), started_at=7, capacity=100)
    return msgspec.structs.replace(worker, **changes)


def a_line(writer: Writer, **changes: Any) -> ThreadInfo:
    line = ThreadInfo.of(writer.run)
    line = msgspec.structs.replace(line, status="queued", lane=LANE, due_at=0)
    return msgspec.structs.replace(line, **changes)


def queued(
    store: Store, thread: str, number: int = 1, *, tenant: str = "tenant", **changes: Any
) -> Writer:
    """A thread committed with an index row: due at once, unless changed."""
    writer = Writer(a_key(thread, tenant), number)
    line = a_line(writer, **changes)
    writer.append(store, source="input", runs=(writer.run,), thread=line)
    return writer


def names(lines: Sequence[ThreadInfo]) -> list[str]:
    return [line.key.thread for line in lines]
