"""A store that keeps everything in this process. Thread-safe; gone when the process ends.

A fork waits until no call is under way, so that the child finds its copy whole and its lock free.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from threading import Lock
from weakref import WeakSet

import msgspec.structs

from milecastle.errors import Conflict, InvalidRequest, Unavailable
from milecastle.model.checkpoint import DELTA, HOLDING, SNAPSHOT, Entry, TaskResult
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.store import Batch, Chain

__all__ = ["MemoryStore"]

_PATIENCE = 10.0
"""How many seconds a fork waits for a call that is under way."""

_locks: WeakSet[Lock] = WeakSet()
_held: list[Lock] = []
_forking = Lock()
"""One fork at a time: what is held is held for that one."""


class _Log:
    """One thread. ``cuts`` are the seqs of its rollups and snapshots."""

    __slots__ = ("cuts", "entries", "failures", "results", "runs")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.cuts: list[int] = []
        self.results: dict[str, TaskResult] = {}
        self.runs: dict[str, RunRecord] = {}
        self.failures: dict[str, Failure] = {}

    @property
    def head(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    def at(self, seq: int) -> Entry | None:
        index = seq - self.entries[0].seq if self.entries else -1
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def between(self, first: int, last: int) -> list[Entry]:
        offset = self.entries[0].seq
        return self.entries[max(0, first - offset) : last - offset + 1]

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.kind != DELTA:
            self.cuts.append(entry.seq)
        if self.results and entry.source not in HOLDING:
            self.results = {}


class MemoryStore:
    """Keeps logs in dicts and lists, under one lock."""

    blocking = False
    rollup_after = None

    def __init__(self) -> None:
        self._lock = Lock()
        self._logs: dict[ThreadKey, _Log] = {}
        self._manifests: dict[tuple[str, str], bytes] = {}
        self._closed = False
        _locks.add(self._lock)

    def commit(self, batch: Batch) -> None:
        """Append the batch, or raise ``Conflict`` and change nothing."""
        with self._lock:
            if self._closed:
                self._check_open()
            log = self._logs.get(batch.key)
            head = log.entries[-1].seq if log and log.entries else 0
            if batch.head != head:
                raise _conflict(batch.key, batch.head + 1, head)
            if log and head and batch.head_id not in (None, log.entries[-1].id):
                raise _conflict(batch.key, head + 1, head)
            for entry in batch.entries:
                head += 1
                if entry.seq != head:
                    raise _conflict(batch.key, entry.seq, batch.head)
            if log is None:
                log = self._logs[batch.key] = _Log()
            for entry in batch.entries:
                log.append(entry)
            for result in batch.results:
                log.results[result.task] = result
            for run in batch.runs:
                log.runs[run.run_id] = _own(run)
            if batch.failure is not None:
                log.failures[batch.failure.run_id] = batch.failure
            if batch.manifest is not None:
                fingerprint, manifest = batch.manifest
                self._manifests.setdefault((batch.key.tenant, fingerprint), manifest)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint, or ``None``."""
        with self._lock:
            log = self._log(key)
            entry = log.at(log.head if seq is None else seq) if log else None
            if log is None or entry is None:
                return None
            cuts = log.cuts[
                bisect_left(log.cuts, entry.base_seq) : bisect_right(log.cuts, entry.roll_seq)
            ]
            kept = [found for cut in cuts if (found := log.at(cut)) is not None]
            tail = log.between(entry.roll_seq + 1, entry.seq)
            results = tuple(log.results.values()) if entry.seq == log.head else ()
            return Chain(_from_newest_snapshot([*kept, *tail]), results)

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """The seq of a checkpoint, or ``None``."""
        with self._lock:
            log = self._log(key)
            entries = log.entries if log else ()
            return next((entry.seq for entry in entries if entry.id == checkpoint_id), None)

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Entries newest first, without payloads."""
        with self._lock:
            log = self._log(key)
            entries = log.entries if log else []
            last = len(entries) if before is None or not entries else before - entries[0].seq
            last = max(0, min(last, len(entries)))
            first = 0 if limit is None else max(0, last - limit)
            listed = entries[first:last]
        return (msgspec.structs.replace(entry, payload=b"") for entry in reversed(listed))

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Entries oldest first, with payloads."""
        with self._lock:
            log = self._log(key)
            if log is None or not log.entries:
                return []
            first = max(0, after + 1 - log.entries[0].seq)
            return log.entries[first : None if limit is None else first + max(0, limit)]

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The thread's runs, newest first."""
        with self._lock:
            log = self._log(key)
            return [_own(run) for run in _newest_first(log)[: _count(limit)]] if log else []

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """One run, or ``None``."""
        with self._lock:
            log = self._log(key)
            run = log.runs.get(run_id) if log else None
            return _own(run) if run else None

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """The failure of one run, or ``None``."""
        with self._lock:
            log = self._log(key)
            return log.failures.get(run_id) if log else None

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads by thread id."""
        with self._lock:
            self._check_open()
            keys = sorted(
                key
                for key in self._logs
                if key.tenant == tenant and (after is None or key.thread > after)
            )
            logs = [self._logs[key] for key in keys if self._logs[key].runs]
            found = [ThreadInfo.of(_newest_first(log)[0]) for log in logs]
        return [info for info in found if status in (None, info.status)][: _count(limit)]

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """A stored manifest, or ``None``."""
        with self._lock:
            self._check_open()
            return self._manifests.get((key.tenant, fingerprint))

    def delete(self, key: ThreadKey, *, head: int | None = None) -> bool:
        """Remove the thread; with ``head``, only if that is still its head."""
        with self._lock:
            log = self._log(key) or _Log()
            if head is not None and head != log.head:
                raise _conflict(key, head, log.head)
            self._logs.pop(key, None)
            return bool(log.entries or log.runs)

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries by snapshots and drop what is below ``cut``."""
        with self._lock:
            log = self._log(key) or _Log()
            if log.head != head:
                raise _conflict(key, head, log.head)
            newest = log.at(head)
            limit = newest.roll_seq if newest else 0
            if max([cut, *(entry.seq for entry in rewritten)]) > limit:
                raise InvalidRequest(
                    f"thread '{key.thread}' cannot be pruned above seq {limit}: "
                    "its writer may still roll up what is there"
                )
            changed = {entry.seq: entry for entry in rewritten}
            kept = [changed.get(entry.seq, entry) for entry in log.entries if entry.seq >= cut]
            dropped = len(log.entries) - len(kept)
            log.entries = kept
            log.cuts = [entry.seq for entry in kept if entry.kind != DELTA]
            return dropped

    def close(self) -> None:
        """Forget everything; every later call raises ``Unavailable``."""
        with self._lock:
            self._closed = True
            self._logs = {}
            self._manifests = {}

    def _log(self, key: ThreadKey) -> _Log | None:
        self._check_open()
        return self._logs.get(key)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the memory store was closed")


def _count(limit: int | None) -> int | None:
    return None if limit is None else max(0, limit)


def _conflict(key: ThreadKey, expected: int, head: int) -> Conflict:
    return Conflict(tenant=key.tenant, thread=key.thread, expected=expected, head=head)


def _own(run: RunRecord) -> RunRecord:
    """The record with a dict of its own, so that no reader or writer changes what is kept."""
    return msgspec.structs.replace(run, metadata=dict(run.metadata))


def _from_newest_snapshot(entries: list[Entry]) -> tuple[Entry, ...]:
    """Drop what a snapshot repeats: pruning may have put one into the middle of a chain."""
    first = len(entries) - 1
    while first > 0 and entries[first].kind != SNAPSHOT:
        first -= 1
    return tuple(entries[first:])


def _newest_first(log: _Log) -> list[RunRecord]:
    return sorted(log.runs.values(), key=lambda run: (run.started_at, run.run_id), reverse=True)


def _before_fork() -> None:
    _forking.acquire()
    _held[:] = [lock for lock in list(_locks) if lock.acquire(timeout=_PATIENCE)]


def _after_fork() -> None:
    """In the parent and in the child: who held the locks is in both."""
    for lock in _held:
        lock.release()
    _held.clear()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
