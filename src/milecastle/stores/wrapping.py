"""A store passing every call on; subclasses change some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.buckets import Buckets
from milecastle.ports.cells import Cells
from milecastle.ports.feed import Feed
from milecastle.ports.mailbox import Mailbox
from milecastle.ports.memory import MemoryItems
from milecastle.ports.pages import Page
from milecastle.ports.store import Batch, Capabilities, Chain, Opened, Store
from milecastle.ports.tags import Tags


class ForwardingStore(Capabilities):
    """A store passing every call on. Derive from it to change some."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def blocking(self) -> bool:
        return self._store.blocking

    @property
    def rollup_after(self) -> int | None:
        return self._store.rollup_after

    @property
    def tags(self) -> Tags | None:
        return self._store.tags

    @property
    def mailbox(self) -> Mailbox | None:
        return self._store.mailbox

    @property
    def memory(self) -> MemoryItems | None:
        return self._store.memory

    @property
    def buckets(self) -> Buckets | None:
        return self._store.buckets

    @property
    def cells(self) -> Cells | None:
        return self._store.cells

    @property
    def feed(self) -> Feed | None:
        return self._store.feed

    def commit(self, batch: Batch) -> None:
        self._store.commit(batch)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self._store.read(key, seq)

    def open(self, key: ThreadKey) -> Opened | None:
        return self._store.open(key)

    def head(self, key: ThreadKey) -> Entry | None:
        return self._store.head(key)

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        return self._store.results(key)

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self._store.read_state(key, seq)

    def count_results(self, key: ThreadKey, task: str) -> int:
        return self._store.count_results(key, task)

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        return self._store.locate(key, checkpoint_id)

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        return self._store.history(key, limit=limit, before=before)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        return self._store.entries(key, after=after, limit=limit)

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        return self._store.runs(key, limit=limit)

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        return self._store.run(key, run_id)

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        return self._store.find_run(key, input_digest)

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        return self._store.failure(key, run_id)

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        return self._store.threads(tenant, status=status, limit=limit, after=after)

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        return self._store.thread(key)

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        return self._store.recent_threads(tenant, status=status, limit=limit, after=after)

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        return self._store.waking_threads(tenant, until=until, limit=limit, after=after)

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        return self._store.recent_runs(tenant, status=status, limit=limit, after=after)

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        return self._store.manifest(key, fingerprint)

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        return self._store.delete(key, head=head, head_id=head_id)

    def prune(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Sequence[Entry],
        oldest: Entry | None = None,
        archived: bool = False,
    ) -> int:
        return self._store.prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        self._store.put_back(key, head=head, oldest=oldest, entries=entries)

    def close(self) -> None:
        self._store.close()
