"""Stores with large values in object storage are held to the contract, with a tiny threshold."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import cast

import pytest

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Batch, Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import OffloadingStore, SharedObjects, offload
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import ClaimContract, MailboxContract, StoreContract
from milecastle.testing.entries import a_key, an_entry
from tests.postgres_cluster import emptied, needs_postgres, new_schema, the_cluster

THRESHOLD = 3
"""Nearly every payload of the contract is larger."""


def objects_of(place: Path | None = None) -> SharedObjects:
    return SharedObjects(f"file://{place}" if place else "memory:///", threshold=THRESHOLD)


@cache
def postgres_url() -> str:
    return the_cluster().url_of(new_schema())


def test_the_contract_sees_objects() -> None:
    """Fails if the threshold is not applied: then the contract below would show nothing."""
    store = offload(MemoryStore(), objects_of())
    batch = Batch(key=a_key(), head=0, entries=(an_entry(1, payload=b"large"),))
    store.commit(batch)
    inside = store.inner.entries(batch.key)[0].payload
    assert inside != batch.entries[0].payload
    assert store.entries(batch.key)[0].payload == batch.entries[0].payload
    assert list(store.objects.folder.list(""))


class TestOffloadingMemoryStore(StoreContract):
    """With objects in files."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.objects = objects_of(tmp_path / "objects")

    def open_store(self) -> Store:
        return offload(MemoryStore(), self.objects)

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, OffloadingStore)
        return offload(store.inner, store.objects)


class TestClaimsOfOffloadingMemoryStore(ClaimContract):
    def open_store(self) -> ClaimStore:
        return cast("ClaimStore", offload(MemoryStore(), objects_of()))

    def reopen(self, store: Store) -> ClaimStore:
        assert isinstance(store, OffloadingStore)
        return cast("ClaimStore", offload(store.inner, store.objects))


class TestMailboxOfOffloadingMemoryStore(MailboxContract):
    def open_store(self) -> ClaimStore:
        return cast("ClaimStore", offload(MemoryStore(), objects_of()))

    def reopen(self, store: Store) -> ClaimStore:
        assert isinstance(store, OffloadingStore)
        return cast("ClaimStore", offload(store.inner, store.objects))


@pytest.mark.slow  # what the store inside proves by itself
class TestOffloadingSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"
        self.objects = objects_of()

    def open_store(self) -> Store:
        return offload(SqliteStore(self.path), self.objects)

    def reopen(self, store: Store) -> Store:
        return self.open_store()


@pytest.mark.slow
class TestClaimsOfOffloadingSqliteStore(ClaimContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"
        self.objects = objects_of()

    def open_store(self) -> ClaimStore:
        return cast("ClaimStore", offload(SqliteStore(self.path), self.objects))

    def reopen(self, store: Store) -> ClaimStore:
        return self.open_store()


@pytest.mark.slow
class TestMailboxOfOffloadingSqliteStore(MailboxContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"
        self.objects = objects_of()

    def open_store(self) -> ClaimStore:
        return cast("ClaimStore", offload(SqliteStore(self.path), self.objects))

    def reopen(self, store: Store) -> ClaimStore:
        return self.open_store()


@pytest.mark.slow
class TestOffloadingJsonlStore(StoreContract):
    lists_by_commit = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store"
        self.objects = objects_of()

    def open_store(self) -> Store:
        return offload(JsonlStore(self.path), self.objects)

    def reopen(self, store: Store) -> Store:
        return self.open_store()


@pytest.mark.slow
@needs_postgres
class TestOffloadingPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _objects(self) -> None:
        self.objects = objects_of()

    def open_store(self) -> Store:
        store = PostgresStore(postgres_url())
        emptied(postgres_url())
        return offload(store, self.objects)

    def reopen(self, store: Store) -> Store:
        return offload(PostgresStore(postgres_url()), self.objects)


@pytest.mark.slow
@needs_postgres
class TestClaimsOfOffloadingPostgresStore(ClaimContract):
    @pytest.fixture(autouse=True)
    def _objects(self) -> None:
        self.objects = objects_of()

    def open_store(self) -> ClaimStore:
        store = PostgresStore(postgres_url())
        emptied(postgres_url())
        return cast("ClaimStore", offload(store, self.objects))

    def reopen(self, store: Store) -> ClaimStore:
        return cast("ClaimStore", offload(PostgresStore(postgres_url()), self.objects))
