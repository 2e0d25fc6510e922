"""The file store is held to the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle.ports.store import Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing import StoreContract


class TestJsonlStore(StoreContract):
    lists_by_commit = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "workspace"

    def open_store(self) -> Store:
        return JsonlStore(self.folder)

    def reopen(self, store: Store) -> Store:
        return JsonlStore(self.folder)


class TestJsonlStoreWithOneOpenFile(TestJsonlStore):
    """The same when hardly anything may stay open."""

    def open_store(self) -> Store:
        return JsonlStore(self.folder, open_files=1)
