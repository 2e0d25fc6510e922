"""The memory store is held to the contract."""

from __future__ import annotations

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import (
    BucketContract,
    ClaimContract,
    MailboxContract,
    MemoryContract,
    StoreContract,
)


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


class TestMemoryOfMemoryStore(MemoryContract):
    def open_store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store

    def dump(self, store: Store) -> bytes:
        assert isinstance(store, MemoryStore)
        return repr(store.memory.scan("tenant", b"", limit=9999)).encode()


class TestBucketsOfMemoryStore(BucketContract):
    def open_store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store
