"""The SQLite store is held to the contract."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.stores.sqlite import SqliteStore, claiming
from milecastle.testing import (
    BucketContract,
    ClaimContract,
    MailboxContract,
    MemoryContract,
    StoreContract,
)
from milecastle.testing.contract_claims import LANE, queued


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open_store(self) -> Store:
        return SqliteStore(self.path)

    def reopen(self, store: Store) -> Store:
        return SqliteStore(self.path)


class TestClaimsOfSqliteStore(ClaimContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open_store(self) -> ClaimStore:
        return SqliteStore(self.path)

    def reopen(self, store: Store) -> ClaimStore:
        return SqliteStore(self.path)

    def test_a_claim_that_gave_up_looks_at_those_that_waited_longest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fails if it gets nothing, or an error, behind many tenants that have nothing due."""
        monkeypatch.setattr(claiming, "VISITS", 3)
        store = self.open_store()
        for number in range(1, 9):
            queued(store, "sleeps", number, tenant=f"a{number}", due_at=2**53)
        for number in range(9, 12):
            queued(store, f"{number}", number, tenant="waits longest", due_at=number)
        found = store.claim("one", [LANE], limit=1)
        assert [line.key.thread for line in found] == ["9"]


class TestMailboxOfSqliteStore(MailboxContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open_store(self) -> ClaimStore:
        return SqliteStore(self.path)

    def reopen(self, store: Store) -> ClaimStore:
        return SqliteStore(self.path)


class TestMemoryOfSqliteStore(MemoryContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open_store(self) -> Store:
        return SqliteStore(self.path)

    def reopen(self, store: Store) -> Store:
        return SqliteStore(self.path)

    def dump(self, store: Store) -> bytes:
        with closing(sqlite3.connect(self.path)) as connection:
            tables = ("memories", "memory_words")
            found = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
        return repr(found).encode()


class TestBucketsOfSqliteStore(BucketContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open_store(self) -> Store:
        return SqliteStore(self.path)

    def reopen(self, store: Store) -> Store:
        return SqliteStore(self.path)
