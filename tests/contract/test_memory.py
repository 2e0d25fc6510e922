"""The memory store is held to the contract."""

from __future__ import annotations

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ClaimContract, MailboxContract, StoreContract


class TestMemoryStore(StoreContract):
    def open_store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store


class TestClaimsOfMemoryStore(ClaimContract):
    def open_store(self) -> ClaimStore:
        return MemoryStore()

    def reopen(self, store: Store) -> ClaimStore:
        assert isinstance(store, MemoryStore)
        return store


class TestMailboxOfMemoryStore(MailboxContract):
    def open_store(self) -> ClaimStore:
        return MemoryStore()

    def reopen(self, store: Store) -> ClaimStore:
        assert isinstance(store, MemoryStore)
        return store
