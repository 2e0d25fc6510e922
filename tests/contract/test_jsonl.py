"""The file store is held to the contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec.structs
import pytest

from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import ClaimStore, system_time
from milecastle.ports.store import Batch, Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing import MailboxContract, StoreContract


class TestJsonlStore(StoreContract):
    lists_by_commit = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "workspace"

    def open_store(self) -> Store:
        return JsonlStore(self.folder)

    def reopen(self, store: Store) -> Store:
        return JsonlStore(self.folder)


class ClaimedJsonl(JsonlStore):
    """As much of claims as the clauses on mailboxes need: a file store has no workers."""

    def now(self) -> int:
        return system_time()

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        now = self.now()
        free = [row for row in self.threads("tenant") if row.lane in lanes and not row.worker]
        due = sorted((row.due_at, row.key.thread) for row in free if row.due_at is not None)
        taken = {thread for due_at, thread in due[:limit] if due_at <= now}
        for row in (row for row in free if row.key.thread in taken):
            head = self.head(row.key)
            claimed = msgspec.structs.replace(row, worker=worker)
            self.commit(Batch(key=row.key, head=head.seq if head else 0, thread=claimed))
        rows = {row.key.thread: row for row in free}
        return [rows[thread] for _, thread in due if thread in taken]


class TestMailboxOfJsonlStore(MailboxContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "workspace"

    def open_store(self) -> ClaimStore:
        return cast("ClaimStore", ClaimedJsonl(self.folder))

    def reopen(self, store: Store) -> ClaimStore:
        return cast("ClaimStore", ClaimedJsonl(self.folder))


class TestJsonlStoreWithOneOpenFile(TestJsonlStore):
    """The same when hardly anything may stay open."""

    def open_store(self) -> Store:
        return JsonlStore(self.folder, open_files=1)
