"""The store of many databases is held to the contract, on three databases of one server."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.stores.sharded import ShardedStore
from milecastle.testing import BucketContract, ClaimContract, MailboxContract, StoreContract
from tests.postgres_cluster import needs_postgres
from tests.sharded_cluster import empty_map, new_map


@cache
def the_map() -> Path:
    return new_map(Path(tempfile.mkdtemp(prefix="mc-map-")))


@needs_postgres
class TestShardedStore(StoreContract):
    def open_store(self) -> Store:
        store = ShardedStore(the_map())
        empty_map(the_map())
        return store

    def reopen(self, store: Store) -> Store:
        return ShardedStore(the_map())


@needs_postgres
class TestClaimsOfShardedStore(ClaimContract):
    def open_store(self) -> ClaimStore:
        store = ShardedStore(the_map())
        empty_map(the_map())
        return store

    def reopen(self, store: Store) -> ClaimStore:
        return ShardedStore(the_map())


@needs_postgres
class TestMailboxOfShardedStore(MailboxContract):
    def open_store(self) -> ClaimStore:
        store = ShardedStore(the_map())
        empty_map(the_map())
        return store

    def reopen(self, store: Store) -> ClaimStore:
        return ShardedStore(the_map())


@needs_postgres
class TestBucketsOfShardedStore(BucketContract):
    def open_store(self) -> Store:
        store = ShardedStore(the_map())
        empty_map(the_map())
        return store

    def reopen(self, store: Store) -> Store:
        return ShardedStore(the_map())
