"""The PostgreSQL store is held to the contract: as its owner, and behind row-level security."""

from __future__ import annotations

from functools import cache

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.stores.postgres import PostgresStore
from milecastle.testing import (
    BucketContract,
    ClaimContract,
    MailboxContract,
    MemoryContract,
    StoreContract,
)
from tests.postgres_cluster import emptied, needs_postgres, new_schema, secured_url, the_cluster


@cache
def plain_url() -> str:
    return the_cluster().url_of(new_schema())


@cache
def guarded_url() -> str:
    return secured_url(prepare="off")


@needs_postgres
class TestPostgresStore(StoreContract):
    def open_store(self) -> Store:
        store = PostgresStore(plain_url())
        emptied(plain_url())
        return store

    def reopen(self, store: Store) -> Store:
        return PostgresStore(plain_url())


@needs_postgres
class TestPostgresStoreWithRowSecurity(StoreContract):
    """As another role, and without prepared statements."""

    def open_store(self) -> Store:
        store = PostgresStore(guarded_url())
        emptied(guarded_url())
        return store

    def reopen(self, store: Store) -> Store:
        return PostgresStore(guarded_url())


@needs_postgres
class TestClaimsOfPostgresStore(ClaimContract):
    def open_store(self) -> ClaimStore:
        store = PostgresStore(plain_url())
        emptied(plain_url())
        return store

    def reopen(self, store: Store) -> ClaimStore:
        return PostgresStore(plain_url())


@needs_postgres
class TestMailboxOfPostgresStore(MailboxContract):
    def open_store(self) -> ClaimStore:
        store = PostgresStore(plain_url())
        emptied(plain_url())
        return store

    def reopen(self, store: Store) -> ClaimStore:
        return PostgresStore(plain_url())


@needs_postgres
class TestMemoryOfPostgresStore(MemoryContract):
    url = staticmethod(plain_url)

    def open_store(self) -> Store:
        store = PostgresStore(self.url())
        emptied(self.url())
        return store

    def reopen(self, store: Store) -> Store:
        return PostgresStore(self.url())

    def dump(self, store: Store) -> bytes:
        assert isinstance(store, PostgresStore)
        return repr(store.memory.scan("tenant", b"", limit=9999)).encode()


@needs_postgres
class TestMemoryOfPostgresStoreWithRowSecurity(TestMemoryOfPostgresStore):
    """As another role, and without prepared statements."""

    url = staticmethod(guarded_url)


@needs_postgres
class TestBucketsOfPostgresStore(BucketContract):
    url = staticmethod(plain_url)

    def open_store(self) -> Store:
        store = PostgresStore(self.url())
        emptied(self.url())
        return store

    def reopen(self, store: Store) -> Store:
        return PostgresStore(self.url())


@needs_postgres
class TestBucketsOfPostgresStoreWithRowSecurity(TestBucketsOfPostgresStore):
    """As another role, and without prepared statements. A list has the shared ones."""

    url = staticmethod(guarded_url)
