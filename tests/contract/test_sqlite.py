"""The SQLite store is held to the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import ClaimContract, StoreContract


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
