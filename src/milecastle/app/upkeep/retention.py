"""Retention: selects, deletes and archives a tenant's old checkpoints and threads.

Rules:

- A checkpoint is deleted only if every given rule allows it.
- A whole thread is deleted only by age, and only if its log's head has nothing left to run and no
  open question. Clocks do not decide: no run is chosen by its start time. A failed or cancelled
  thread has something left to run; ``failed`` deletes it anyway.
- It is deleted only if its head is still the one that was read first, and no input waits: the store
  compares both. A run, an update and a fork start with an entry, so nothing acknowledged is
  deleted unseen.
- Its subgraph threads are removed first, so a sweep that dies leaves none behind. Each is removed
  at the head it had when the thread was seen to have ended, or stays.
- A thread written to meanwhile stays: its pruning is tried again, and then both are left
  for the next time.
- An encrypted thread's key is deleted after the thread, never before: if a sweep dies in
  between, only the key is left, and erasing that name deletes it. A new thread with the same
  name keeps the key (``Keyring.eraser``).
- A thread that cannot be read does not stop the others: it is skipped and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from milecastle.app.clock import SystemClock
from milecastle.app.threads.children import every_thread, is_child, root_of
from milecastle.app.threads.pruning import find_cut, prune_thread
from milecastle.app.upkeep.archiving import archive_thread, count_archivable, require_archive
from milecastle.app.upkeep.removing import remove_thread
from milecastle.codec.deltas import LogCodec
from milecastle.errors import (
    CodecError,
    Conflict,
    Corrupted,
    FormatTooNew,
    InvalidRequest,
    MilecastleError,
)
from milecastle.model.checkpoint import Entry
from milecastle.model.children import Parent
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.clock import Clock
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.encryption.keyring import Keyring

_THREADS = 1000
_ATTEMPTS = 3


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints to keep per thread: the last ones, the recent ones, or both.

    ``keep_last`` keeps the newest n, whatever their age. ``older_than`` keeps newer ones; alone, it
    also deletes whole threads that completed longer ago, and with ``failed`` those that failed or
    were cancelled and have no open question, although they could be resumed. ``archive_after``
    moves what the others keep, and is older, to object storage. ``threads`` limits it to these
    threads; by default all.
    """

    keep_last: int | None = None
    older_than: timedelta | None = None
    archive_after: timedelta | None = None
    threads: tuple[str, ...] | None = None
    failed: bool = False

    def __post_init__(self) -> None:
        if not self.deletes and self.archive_after is None:
            raise InvalidRequest("Retention needs keep_last, older_than or archive_after")
        if self.keep_last is not None and self.keep_last < 1:
            raise InvalidRequest(f"keep_last must be at least 1, not {self.keep_last}")
        if self.older_than is not None and self.older_than < timedelta(0):
            raise InvalidRequest(f"older_than must not be negative: {self.older_than}")
        if self.archive_after is not None and self.archive_after < timedelta(0):
            raise InvalidRequest(f"archive_after must not be negative: {self.archive_after}")

    @property
    def deletes(self) -> bool:
        """True if it deletes checkpoints or threads."""
        return self.keep_last is not None or self.older_than is not None


class KeptMore(msgspec.Struct, frozen=True, kw_only=True):
    """A thread with more than ``keep_last`` checkpoints left, and why.

    ``head``: its head depends on them, and a writer may still use them; they can be deleted after
    the next rollup, or when no input waits. ``young``: they are newer than ``older_than``.
    """

    thread: str
    checkpoints: int
    why: Literal["head", "young"]


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The deletions, or with ``dry_run`` those planned.

    ``threads`` were checked; ``pruned`` of them lost ``dropped`` checkpoints; ``deleted`` are whole
    threads, with their subgraphs. ``busy`` were written to meanwhile and are left for the next
    sweep. ``kept_more`` have more than ``keep_last`` checkpoints left. ``unreadable`` were skipped,
    each with the error: they are damaged, or their states need missing types or keys. ``archived``
    checkpoints were moved to object storage.
    """

    threads: int
    pruned: int
    dropped: int
    deleted: tuple[str, ...]
    busy: tuple[str, ...]
    dry_run: bool
    kept_more: tuple[KeptMore, ...] = ()
    unreadable: Mapping[str, MilecastleError] = {}
    archived: int = 0


def apply_retention(
    store: Store,
    codec: LogCodec,
    tenant: str,
    retention: Retention,
    *,
    now: int,
    dry_run: bool = False,
    encryption: Keyring | None = None,
    clock: Clock | None = None,
) -> RetentionReport:
    if retention.archive_after is not None:
        require_archive(store)
    sweep = _Sweep(store, codec, retention, now, dry_run, encryption, clock or SystemClock())
    for key in _keys(store, tenant, retention):
        sweep.visit(key)
    return sweep.report()


class _Sweep:
    def __init__(
        self,
        store: Store,
        codec: LogCodec,
        retention: Retention,
        now: int,
        dry_run: bool,
        encryption: Keyring | None,
        clock: Clock,
    ) -> None:
        self._store = store
        self._codec = codec
        self._clock = clock
        self._deletes = retention.deletes
        self._keep_last, self._failed = retention.keep_last, retention.failed
        age = retention.older_than
        self._limit = None if age is None else now - age // timedelta(microseconds=1)
        age = retention.archive_after
        self._archive_before = None if age is None else now - age // timedelta(microseconds=1)
        self._archived = 0
        self._dry_run = dry_run
        self._encryption = encryption
        self._gone: ThreadKey | None = None
        self._threads = 0
        self._dropped: list[int] = []
        self._deleted: list[str] = []
        self._busy: list[str] = []
        self._kept_more: list[KeptMore] = []
        self._unreadable: dict[str, MilecastleError] = {}

    def visit(self, key: ThreadKey) -> None:
        if is_child(key) and root_of(key) == self._gone:
            return
        self._threads += 1
        try:
            self._sweep(key)
        except (Corrupted, FormatTooNew, CodecError) as error:
            self._unreadable[key.thread] = error

    def _sweep(self, key: ThreadKey) -> None:
        head = self._find_end(key)
        if head is not None:
            self._let_go(key, head)
            return
        if self._deletes:
            dropped = self._prune_patiently(key)
            self._note_more(key)
            if dropped is None:
                self._busy.append(key.thread)
                return
            if dropped:
                self._dropped.append(dropped)
        if self._archive_before is not None:
            self._archive(key, self._archive_before)

    def report(self) -> RetentionReport:
        return RetentionReport(
            threads=self._threads,
            pruned=len(self._dropped),
            dropped=sum(self._dropped),
            deleted=tuple(self._deleted),
            busy=tuple(self._busy),
            unreadable=self._unreadable,
            dry_run=self._dry_run,
            kept_more=tuple(self._kept_more),
            archived=self._archived,
        )

    def _archive(self, key: ThreadKey, before: int) -> None:
        store, over = self._store, self._completed_at(key)
        if self._dry_run:
            self._archived += count_archivable(store, key, before=before, over=over)
            return
        try:
            self._archived += archive_thread(
                store, self._codec, self._clock, key, before=before, over=over
            )
        except Conflict:
            self._busy.append(key.thread)

    def _completed_at(self, key: ThreadKey) -> str:
        """Id of the head if nothing is left to run, in the thread and in that of its parent.

        The head is read first: whatever happens from then on moves it.
        """
        head, info = self._store.head(key), self._store.thread(key)
        if head is None or info is None or head.next or head.route:
            return ""
        root = self._store.thread(root_of(key)) if is_child(key) else info
        is_awaited = root is not None and root.status != "completed"
        is_over = info.status == "completed" and self._is_over(head, info) and not is_awaited
        return head.id if is_over else ""

    def _find_end(self, key: ThreadKey) -> tuple[int, str | None] | None:
        """A thread's head to delete: it has ended, and nothing has happened to it since.

        The head is read first: whatever is written from then on moves it.
        """
        if self._limit is None or self._keep_last is not None:
            return None
        head = self._store.head(key)
        info = self._store.thread(key)
        if info is None or not self._is_over(head, info):
            return None
        if is_child(key) and self._store.thread(root_of(key)) is not None:
            return None
        runs = self._store.runs(key, limit=1)
        if runs and self._is_awaited(runs[0]):
            return None
        times = [run.ended_at or run.started_at for run in runs]
        times += [info.ended_at or info.started_at, head.created_at if head else 0]
        if max(times) >= self._limit:
            return None
        return (head.seq, head.id) if head else (0, None)

    def _is_awaited(self, run: RunRecord) -> bool:
        """True if its parent is not completed: a node that runs again would spawn another."""
        found = Parent.of(run)
        if found is None:
            return False
        parent = self._store.thread(ThreadKey(run.key.tenant, found.thread))
        return parent is not None and parent.status != "completed"

    def _is_over(self, head: Entry | None, info: ThreadInfo) -> bool:
        if info.due_at is not None or info.worker or waiting_inputs(self._store, info.key, 1):
            return False  # it is to be retried, or inputs wait
        stopped = info.status in ("failed", "cancelled") and not info.questions
        if head is not None and (head.next or head.route):
            return self._failed and stopped
        return info.status == "completed" or stopped

    def _let_go(self, key: ThreadKey, head: tuple[int, str | None]) -> None:
        if not self._dry_run:
            try:
                if not remove_thread(self._store, key, self._encryption, *head):
                    return
            except Conflict as conflict:
                if conflict.head:  # without a head: another process deleted it
                    self._busy.append(key.thread)
                return
        self._gone = key
        self._deleted.append(key.thread)

    def _note_more(self, key: ThreadKey) -> None:
        head = self._store.head(key)
        if self._keep_last is None or head is None or head.seq <= self._keep_last:
            return
        keep = self._to_keep(key)
        cut = self._cut(key, head, keep)
        left = sum(1 for entry in self._store.history(key) if entry.seq >= cut)
        if left > self._keep_last:
            why: Literal["head", "young"] = "head" if cut <= head.seq - keep else "young"
            self._kept_more.append(KeptMore(thread=key.thread, checkpoints=left, why=why))

    def _prune_patiently(self, key: ThreadKey) -> int | None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._prune(key)
            except Conflict:
                continue
            except (
                InvalidRequest
            ):  # another pruning came in between; the next attempt shows the rest
                if attempt == _ATTEMPTS:
                    raise
        return None

    def _prune(self, key: ThreadKey) -> int:
        keep = self._to_keep(key)
        if not self._dry_run:
            return prune_thread(self._store, self._codec, key, keep_last=keep)
        head = self._store.head(key)
        cut = self._cut(key, head, keep) if head else 0
        return sum(1 for _ in self._store.history(key, before=cut))

    def _cut(self, key: ThreadKey, head: Entry, keep: int) -> int:
        return find_cut(self._store, self._codec.for_thread(key), head, key, keep)

    def _to_keep(self, key: ThreadKey) -> int:
        keep = self._keep_last or 1
        if self._limit is not None:
            for place, entry in enumerate(self._store.history(key), 1):
                if entry.created_at >= self._limit:
                    keep = max(keep, place)
        return keep


def _keys(store: Store, tenant: str, retention: Retention) -> Iterator[ThreadKey]:
    if retention.threads is not None:
        return (ThreadKey(tenant, thread) for thread in retention.threads)
    return (info.key for info in every_thread(store, tenant, page=_THREADS))
