"""A store in memory. Thread-safe; lost when the process ends.

A fork waits until no call is in progress, so the child has a consistent copy and a free lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from sys import maxsize
from threading import Lock

import msgspec.structs

from milecastle.errors import Unavailable
from milecastle.model.checkpoint import DELTA, HOLDING, Entry, TaskResult, count_of_task
from milecastle.model.keys import ThreadKey, checks_keys, require_key
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports import mailbox as port
from milecastle.ports.claims import SteadyTime, dated
from milecastle.ports.fencing import (
    check_cut,
    check_oldest,
    conflict,
    from_newest_snapshot,
    input_known,
    message_gone,
    message_waits,
)
from milecastle.ports.limits import Limit
from milecastle.ports.mailbox import Marks, NewRun, Sent, StoredMessage, with_unread
from milecastle.ports.pages import Page, page_of
from milecastle.ports.store import Batch, Capabilities, Chain, Opened
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.memory.buckets import MemoryBuckets, StoredBuckets
from milecastle.stores.memory.claims import Claims
from milecastle.stores.memory.items import ItemChanges, MemoryStoreItems, StoredItems
from milecastle.stores.memory.messages import Messages
from milecastle.support.forking import PATIENCE, watch_forks

_numbers = count(1)
"""In the order of commits, which the lock of a store puts into a row."""


class _Log:
    """One thread. ``cuts`` are the seqs of its rollups and snapshots.

    ``told_at`` and ``places`` are numbers in commit order: for the line, and for each run.
    ``digests`` are the newest runs by input digest.
    """

    __slots__ = (
        "cuts",
        "digests",
        "entries",
        "failures",
        "info",
        "messages",
        "places",
        "results",
        "runs",
        "tags",
        "told_at",
    )

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.cuts: list[int] = []
        self.results: dict[str, TaskResult] = {}
        self.runs: dict[str, RunRecord] = {}
        self.failures: dict[str, Failure] = {}
        self.info: ThreadInfo | None = None
        self.messages: Messages | None = None
        self.told_at = 0
        self.places: dict[str, int] = {}
        self.digests: dict[str, str] = {}
        self.tags: tuple[str, ...] = ()

    @property
    def head(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    def at(self, seq: int) -> Entry | None:
        index = seq - self.entries[0].seq if self.entries else -1
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def between(self, first: int, last: int) -> list[Entry]:
        offset = self.entries[0].seq
        return self.entries[max(0, first - offset) : last - offset + 1]

    def absorb(self, batch: Batch) -> None:
        entries, cuts = self.entries, self.cuts
        for entry in batch.entries:
            if not entries or entries[-1].seq < entry.seq:
                entries.append(entry)
            if entry.kind != DELTA and (not cuts or cuts[-1] < entry.seq):
                cuts.append(entry.seq)
            if self.results and entry.source not in HOLDING:
                self.results = {}
        for result in batch.results:
            self.results[result.task] = result
        for run in batch.runs:
            self.runs[run.run_id] = _own(run)
            if run.run_id not in self.places:
                if run.input_digest:  # first: a batch that is completed finds the place
                    self.digests[run.input_digest] = run.run_id
                self.places[run.run_id] = next(_numbers)
        if batch.thread is not None:
            self.info, self.told_at = batch.thread, next(_numbers)
        elif self.info is None and batch.runs:
            self.info, self.told_at = ThreadInfo.of(batch.runs[-1]), next(_numbers)
        if batch.tags is not None and self.info is not None:
            self.tags = batch.tags.applied(self.tags)
        if batch.failure is not None:
            self.failures[batch.failure.run_id] = batch.failure
        if batch.consumes and self.messages is not None:
            self.messages.consume(batch.consumes, batch.head + len(batch.entries))


@checks_keys
class MemoryStore(Capabilities):
    """Stores logs in dicts and lists, under one lock.

    ``now`` is its clock, in microseconds: for claims and lines due at once.
    ``_pending`` is the batch that is being written, with its message and its memory items. If a
    signal interrupts that, the next call completes it before it does anything else.
    """

    blocking = False
    rollup_after = None

    def __init__(self, *, now: Callable[[], int] | None = None) -> None:
        self._lock = Lock()
        self._logs: dict[ThreadKey, _Log] = {}
        self._claims = Claims(now or SteadyTime(), partial(_set_line, self._logs))
        self._items = StoredItems(self._claims.now)
        self._buckets = StoredBuckets(self._claims.now)
        self._manifests: dict[tuple[str, str], bytes] = {}
        self._pending: tuple[Batch, StoredMessage | None, ItemChanges | None] | None = None
        self._closed = False
        self._is_paused = False
        watch_forks(self)

    def commit(self, batch: Batch) -> None:
        with self._lock:
            if self._closed or self._pending is not None:
                self._check_open()
            log = self._logs.get(batch.key)
            if log is None:
                require_key(batch.key)
            newest = log.entries[-1] if log and log.entries else None
            head = newest.seq if newest else 0
            if batch.head != head or (newest and batch.head_id not in (None, newest.id)):
                raise conflict(batch.key, batch.head + 1, head)
            if batch.unless is not None and log and batch.unless in log.digests:
                raise input_known(batch.key, head)
            for entry in batch.entries:
                head += 1
                if entry.seq != head:
                    raise conflict(batch.key, entry.seq, batch.head)
            if batch.consumes and not _are_unread(log, batch.consumes):
                raise message_gone(batch.key, batch.head)
            if batch.thread is not None:
                batch = dated(_with_message(batch, log), self._claims.now())
            changes: ItemChanges | None = None
            if batch.memory:
                tenant, thread = batch.key.tenant, batch.key.thread
                changes = self._items.changes(tenant, batch.memory, thread, head)
            self._write(batch, log, None, changes)

    def _write(
        self,
        batch: Batch,
        log: _Log | None,
        message: StoredMessage | None = None,
        changes: ItemChanges | None = None,
    ) -> None:
        self._pending = batch, message, changes
        if log is None:
            log = self._logs[batch.key] = _Log()
        log.absorb(batch)
        if message is not None and log.messages is not None:
            log.messages.add(message)
        if batch.thread is not None:
            self._claims.note(batch.key, batch.thread)
        if batch.manifest is not None:
            fingerprint, manifest = batch.manifest
            self._manifests.setdefault((batch.key.tenant, fingerprint), manifest)
        if changes is not None:
            self._items.apply(changes)
        self._pending = None

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        with self._lock:
            log = self._log(key)
            return _chain(log, seq) if log else None

    def open(self, key: ThreadKey) -> Opened | None:
        with self._lock:
            log = self._log(key)
            chain = _chain(log) if log else None
            if log is None or chain is None:
                return None
            run = log.runs.get(chain.entries[-1].run_id)
            return Opened(chain, _own(run) if run else None)

    def head(self, key: ThreadKey) -> Entry | None:
        with self._lock:
            log = self._log(key)
            return _bare(log.entries[-1]) if log and log.entries else None

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        with self._lock:
            log = self._log(key)
            return list(log.results.values()) if log and log.entries else []

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        chain = self.read(key, seq)
        return Chain(chain.entries) if chain else None

    def count_results(self, key: ThreadKey, task: str) -> int:
        with self._lock:
            log = self._log(key)
            return count_of_task(task, log.results if log and log.entries else ())

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        with self._lock:
            log = self._log(key)
            entries = log.entries if log else ()
            return next((entry.seq for entry in entries if entry.id == checkpoint_id), None)

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        with self._lock:
            log = self._log(key)
            entries = log.entries if log else []
            last = len(entries) if before is None or not entries else before - entries[0].seq
            last = max(0, min(last, len(entries)))
            first = 0 if limit is None else max(0, last - limit)
            listed = entries[first:last]
        return (_bare(entry) for entry in reversed(listed))

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        with self._lock:
            log = self._log(key)
            if log is None or not log.entries:
                return []
            first = max(0, after + 1 - log.entries[0].seq)
            return log.entries[first : None if limit is None else first + max(0, limit)]

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        with self._lock:
            log = self._log(key)
            newest_first = list(log.runs.values())[::-1] if log else []
            return [_own(run) for run in newest_first[: _count(limit)]]

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        with self._lock:
            log = self._log(key)
            run = log.runs.get(run_id) if log else None
            return _own(run) if run else None

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        with self._lock:
            log = self._log(key)
            run_id = log.digests.get(input_digest) if log else None
            return _own(log.runs[run_id]) if log and run_id else None

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
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
        with self._lock:
            self._check_open()
            keys = sorted(
                key
                for key in self._logs
                if key.tenant == tenant and (after is None or key.thread > after)
            )
            lines = [self._logs[key].info for key in keys]
        found = [info for info in lines if info is not None and status in (None, info.status)]
        return found[: _count(limit)]

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        with self._lock:
            log = self._log(key)
            return log.info if log else None

    @property
    def tags(self) -> MemoryTags:
        return MemoryTags(self._logs_of)

    @property
    def mailbox(self) -> MemoryMailbox:
        return MemoryMailbox(self._lock, self._log, self._claims, self._write)

    @property
    def memory(self) -> MemoryStoreItems:
        return MemoryStoreItems(self._lock, self._items, self._check_open)

    @property
    def buckets(self) -> MemoryBuckets:
        return MemoryBuckets(self._lock, self._buckets, self._check_open)

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        found = [
            ((log.told_at, key.thread, 0), log.info)
            for key, log in self._logs_of(tenant)
            if log.info is not None and status in (None, log.info.status)
        ]
        return page_of(found, limit, after, down=True)

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        found = [
            ((log.info.wake_at, key.thread, 0), log.info)
            for key, log in self._logs_of(tenant)
            if log.info is not None
            and log.info.wake_at is not None
            and (until is None or log.info.wake_at <= until)
        ]
        return page_of(found, limit, after, down=False)

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        found = [
            ((log.places.get(run.run_id, 0), key.thread, 0), _own(run))
            for key, log in self._logs_of(tenant)
            for run in log.runs.values()
            if status in (None, run.status)
        ]
        return page_of(found, limit, after, down=True)

    def _logs_of(self, tenant: str) -> list[tuple[ThreadKey, _Log]]:
        with self._lock:
            self._check_open()
            return [(key, log) for key, log in self._logs.items() if key.tenant == tenant]

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        with self._lock:
            self._check_open()
            return self._manifests.get((key.tenant, fingerprint))

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        with self._lock:
            log = self._log(key) or _Log()
            if head is not None and head != log.head:
                raise conflict(key, head, log.head)
            if head_id is not None and not (log.entries and log.entries[-1].id == head_id):
                raise conflict(key, log.head + 1, log.head)
            is_kept = log.info and log.messages and port.is_kept(log.info, log.messages.is_unread)
            if is_kept and (head is not None or head_id is not None):
                raise message_waits(key, log.head)
            self._logs.pop(key, None)
            self._claims.note(key, None)
            return bool(log.entries or log.runs)

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
        with self._lock:
            log = self._log(key) or _Log()
            if log.head != head:
                raise conflict(key, head, log.head)
            if oldest is not None:
                check_oldest(key, head, oldest, log.entries[0] if log.entries else None)
            newest = log.at(head)
            check_cut(key, newest.roll_seq if newest else 0, cut, rewritten)
            changed = {entry.seq: entry for entry in rewritten}
            kept = [changed.get(entry.seq, entry) for entry in log.entries if entry.seq >= cut]
            dropped = len(log.entries) - len(kept)
            pruned = _Log()
            pruned.entries = kept
            pruned.cuts = [entry.seq for entry in kept if entry.kind != DELTA]
            pruned.results, pruned.runs = log.results, log.runs
            pruned.failures, pruned.info = log.failures, log.info
            pruned.told_at, pruned.places, pruned.tags = log.told_at, log.places, log.tags
            pruned.digests = log.digests
            pruned.messages = log.messages
            if log.messages and not archived:
                pruned.messages = log.messages.pruned(cut)
            if log.entries or log.runs:
                self._logs[key] = pruned
            return dropped

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        with self._lock:
            log = self._log(key) or _Log()
            if log.head != head:
                raise conflict(key, head, log.head)
            check_oldest(key, head, oldest, log.entries[0] if log.entries else None)
            log.entries = [*entries, *log.entries[1:]]
            log.cuts = [entry.seq for entry in log.entries if entry.kind != DELTA]

    def beat(self, worker: WorkerInfo) -> None:
        with self._lock:
            self._check_open()
            self._claims.beat(worker)

    def retire(self, worker: str) -> int:
        with self._lock:
            self._check_open()
            return self._claims.retire(worker)

    def workers(self) -> Sequence[WorkerInfo]:
        with self._lock:
            self._check_open()
            return self._claims.workers()

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        with self._lock:
            self._check_open()
            return self._claims.claim(worker, lanes, limit)

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        with self._lock:
            log = self._log(key)
            if log is None or log.info is None or not worker or log.info.worker != worker:
                return False
            self._claims.give_back(key, self._claims.now() + round(delay * 1_000_000))
            return True

    def reclaim(self, timeout: float | None = None) -> int:
        with self._lock:
            self._check_open()
            return self._claims.reclaim(timeout)

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        with self._lock:
            self._check_open()
            return self._claims.claimed(worker)

    def due_in(self, lanes: Sequence[str]) -> float | None:
        with self._lock:
            self._check_open()
            return self._claims.due_in(lanes)

    def now(self) -> int:
        with self._lock:
            self._check_open()
            return self._claims.now()

    def depths(self) -> Sequence[LaneDepth]:
        with self._lock:
            self._check_open()
            return self._claims.depths()

    def overdue(self, age: float) -> Sequence[str]:
        with self._lock:
            self._check_open()
            return self._claims.overdue(age)

    def limits(self) -> Sequence[Limit]:
        with self._lock:
            self._check_open()
            return self._claims.limits()

    def set_limit(self, limit: Limit) -> None:
        with self._lock:
            self._check_open()
            self._claims.set_limit(limit)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._logs.clear()
            self._manifests = {}

    def _log(self, key: ThreadKey) -> _Log | None:
        self._check_open()
        return self._logs.get(key)

    def before_fork(self) -> None:
        """Wait until no call is in progress: the child gets a consistent copy and a free lock."""
        self._is_paused = self._lock.acquire(timeout=PATIENCE)

    def after_fork(self, *, in_child: bool) -> None:
        """Let calls begin again: the lock's holder exists in parent and child."""
        if self._is_paused:
            self._is_paused = False
            self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the memory store was closed")
        if self._pending is not None:
            batch, message, changes = self._pending
            self._write(batch, self._logs.get(batch.key), message, changes)


@checks_keys
class MemoryTags:
    def __init__(self, logs_of: Callable[[str], Sequence[tuple[ThreadKey, _Log]]]) -> None:
        self._logs_of = logs_of

    def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        wanted = frozenset(threads)
        found = {key.thread: log.tags for key, log in self._logs_of(tenant) if log.tags}
        return {thread: tags for thread, tags in found.items() if thread in wanted}

    def threads(
        self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]:
        found = {
            key: log.info
            for key, log in self._logs_of(tenant)
            if tag in log.tags and log.info is not None and (after is None or key.thread > after)
        }
        return [found[key] for key in sorted(found)][: _count(limit)]


@checks_keys
class MemoryMailbox:
    def __init__(
        self,
        lock: Lock,
        log_of: Callable[[ThreadKey], _Log | None],
        claims: Claims,
        write: Callable[[Batch, _Log, StoredMessage], None],
    ) -> None:
        self._lock = lock
        self._log_of = log_of
        self._claims = claims
        self._write = write

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        run: NewRun | None = None,
        debounce: port.Debounce | None = None,
    ) -> Sent:
        with self._lock:
            log, row, messages = self._open(key)
            if not port.is_of(row, graph):
                return Sent(number=0, reused=False, status=row.status)
            number = messages.find(mark)
            if number is not None:
                return Sent(number=number, reused=True, status=row.status)
            if run and run.unless and run.is_known(log.digests.get(run.unless)):
                return Sent(number=0, reused=True, status=row.status)
            if len(messages.unread) >= port.MOST_UNREAD:
                port.refuse_full(key)
            number, now = messages.last + 1, self._claims.now()
            first = partial(messages.first_sent_at, topic, now)
            if due := port.woken(row, topic, number, now, debounce, first):
                self._claims.wake(due)  # first: a message that was stored is always noticed
            message = StoredMessage(
                number=number, topic=topic, mark=mark, payload=payload, sent_at=now
            )
            runs = (run.record,) if run else ()
            self._write(Batch(key=key, head=log.head, runs=runs), log, message)
            return Sent(number=number, reused=False, status=row.status)

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        with self._lock:
            log = self._log_of(key)
            found = (
                message
                for message in (log.messages.unread.values() if log and log.messages else ())
                if message.number > after and topic in (None, message.topic)
            )
            return list(found if limit is None else islice(found, min(max(0, limit), maxsize)))

    def discard(self, key: ThreadKey, number: int) -> bool:
        with self._lock:
            log = self._log_of(key)
            if log is None or log.messages is None or number not in log.messages.unread:
                return False
            log.messages.consume([number], log.head)
            return True

    def marks(self, key: ThreadKey) -> Marks:
        with self._lock:
            log = self._log_of(key)
            return log.messages.marks() if log and log.messages else Marks()

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        with self._lock:
            _, row, kept = self._open(key)
            kept.restore(messages, marks or Marks())
            self._claims.wake(port.restored(row, self._claims.now(), kept.is_unread))

    def _open(self, key: ThreadKey) -> tuple[_Log, ThreadInfo, Messages]:
        log = self._log_of(key)
        if log is None or log.info is None:
            port.refuse_no_thread(key)
        if log.messages is None:
            log.messages = Messages()
        return log, log.info, log.messages


def _chain(log: _Log, seq: int | None = None) -> Chain | None:
    entry = log.at(log.head if seq is None else seq)
    if entry is None:
        return None
    cuts = log.cuts[bisect_left(log.cuts, entry.base_seq) : bisect_right(log.cuts, entry.roll_seq)]
    kept = [found for cut in cuts if (found := log.at(cut)) is not None]
    tail = log.between(entry.roll_seq + 1, entry.seq)
    results = tuple(log.results.values()) if entry.seq == log.head else ()
    return Chain(from_newest_snapshot([*kept, *tail]), results)


def _are_unread(log: _Log | None, numbers: Sequence[int]) -> bool:
    messages = log.messages if log else None
    return messages is not None and all(number in messages.unread for number in numbers)


def _with_message(batch: Batch, log: _Log | None) -> Batch:
    if log is None or log.info is None or log.messages is None or batch.thread is None:
        return batch
    is_unread = partial(log.messages.is_unread, besides=batch.consumes)
    row = with_unread(batch.thread, log.info.lane, is_unread)
    return msgspec.structs.replace(batch, thread=row)


def _set_line(logs: dict[ThreadKey, _Log], line: ThreadInfo) -> None:
    logs[line.key].info = line


def _count(limit: int | None) -> int | None:
    return None if limit is None else max(0, limit)


def _bare(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, payload=b"")


def _own(run: RunRecord) -> RunRecord:
    return msgspec.structs.replace(run, metadata=dict(run.metadata))
