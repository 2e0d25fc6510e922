"""The memory store is held to the contract."""

from __future__ import annotations

from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import StoreContract


class TestMemoryStore(StoreContract):
    def open_store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store
