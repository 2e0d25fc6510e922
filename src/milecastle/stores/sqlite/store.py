"""A store in one SQLite file: durable, for many threads and processes on one machine.

Rules:

- A step is one INSERT, which carries its own fence: it is refused unless the head is there, is
  the entry's parent and has no successor. Everything else goes through ``writing``, which checks
  before it writes.
- Every row that is read is verified. Damage is ``Corrupted``, with its place.
- Each read sees one state of the file. A history is read page by page, and nothing is held between
  pages.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec.structs

from milecastle.errors import Conflict, Corrupted, InvalidRequest, StoreError
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey, checks_keys, require_key
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.claims import SteadyTime, dated, lost_at, require_worker
from milecastle.ports.fairness import Rotation
from milecastle.ports.limits import Limit
from milecastle.ports.maintenance import (
    Finding,
    Inspected,
    Maintenance,
    Repaired,
    finding_of,
    inspect_listed,
    inspect_pages,
)
from milecastle.ports.pages import Page, PageKey, place_after
from milecastle.ports.store import Batch, Capabilities, Chain, CommitMany, Join, JoinedStore, Opened
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.sqlite import claiming
from milecastle.stores.sqlite.buckets import SqliteBuckets
from milecastle.stores.sqlite.connections import Connections, Synchronous
from milecastle.stores.sqlite.joining import JoinedFile, joined_transaction
from milecastle.stores.sqlite.log import Known, ThreadLog, glance
from milecastle.stores.sqlite.mailbox import SqliteMailbox
from milecastle.stores.sqlite.memory import SqliteMemory, write_items
from milecastle.stores.sqlite.messages import with_message
from milecastle.stores.sqlite.migrating import SqliteFile, prepare
from milecastle.stores.sqlite.queries import SQL
from milecastle.stores.sqlite.rows import Row, ThreadRow, worker_row, write_text
from milecastle.stores.sqlite.transaction import NO_LIMIT, Lookup, Tell, Transaction
from milecastle.stores.sqlite.writing import (
    append_alone,
    delete_thread,
    is_plain,
    last_of,
    prune_thread,
    put_entries_back,
    step_row,
    write_batch,
)
from milecastle.support.printable import printable

_APPEND = SQL["append"]
_PAGE = 128
_REMEMBERED = 10_000


@checks_keys
class SqliteStore(SqliteFile, Capabilities):
    """Stores logs in an SQLite file, which is created if it does not exist.

    ``synchronous="normal"`` lets the operating system delay writes: commits survive the death of
    the process, but a power cut may lose the last ones. ``timeout`` is how many seconds a writer
    waits for another one. ``now`` is its clock, in microseconds: for claims and lines that are
    due at once.
    """

    blocking = True
    rollup_after = 128

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Synchronous = "full",
        timeout: float = 30.0,
        now: Callable[[], int] | None = None,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise InvalidRequest(f"synchronous must be 'full' or 'normal', not '{synchronous}'")
        super().__init__(path, timeout=timeout)
        first = prepare(self.path, timeout)
        self._connections = Connections(self.path, synchronous, timeout, first)
        self._known: dict[ThreadKey, Known] = {}
        self._manifests: set[tuple[str, str]] = set()
        self._now = now or SteadyTime(self._seen())
        self._noted = 0
        self._rotation = Rotation()

    def commit(self, batch: Batch) -> None:
        known = self._known.get(batch.key)
        if known is None:
            require_key(batch.key)
        elif is_plain(batch) and not (batch.consumes or batch.memory):
            row = step_row(batch, known)
            if row is not None and self._connections.write_alone(_APPEND, row):
                known.last = last_of(batch.entries[0], row[1])
                return
        with self._connections.writing() as cursor:
            write = self._write_one if batch.consumes or batch.memory else self._write
            now = write(Transaction(cursor, self.path), batch, known)
        self._learn(batch, now)

    @property
    def commit_many(self) -> CommitMany:
        return self._commit_many

    def _commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        learned: dict[ThreadKey, Known] = {}
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self.path)
            outcomes = [self._commit_one(transaction, batch, learned) for batch in batches]
        for batch, outcome in zip(batches, outcomes, strict=True):
            if outcome is None:
                self._learn(batch, learned.get(batch.key))
        return outcomes

    @property
    def join(self) -> Join:
        return self._join

    def _join(self, connection: Any, key: ThreadKey) -> JoinedStore:
        require_key(key)
        self._connections.check_open()
        joined = partial(joined_transaction, connection, self.path)
        return JoinedFile(joined, partial(self._write_one, known=None), self.mailbox)

    def _write_one(
        self, transaction: Transaction, batch: Batch, known: Known | None
    ) -> Known | None:
        now = append_alone(transaction, batch, known) if known and is_plain(batch) else None
        now = now or self._write(transaction, batch, known)
        if batch.memory:
            seq, key = batch.head + len(batch.entries), batch.key
            write_items(transaction, key.tenant, batch.memory, self._now(), key.thread, seq)
        return now

    def _write(self, transaction: Transaction, batch: Batch, known: Known | None) -> Known | None:
        manifest = batch.manifest
        if manifest is not None and (batch.key.tenant, manifest[0]) in self._manifests:
            batch = msgspec.structs.replace(batch, manifest=None)  # none is ever removed
        run_id = batch.runs[-1].run_id if batch.runs else ""
        found = transaction.look(batch.key, run_id)
        return write_batch(transaction, found, self._timed(transaction, found, batch), known)

    def _learn(self, batch: Batch, known: Known | None) -> None:
        if known is not None:
            self._remember(batch.key, known)
        if batch.manifest is not None:
            if len(self._manifests) >= _REMEMBERED:
                self._manifests = set()
            self._manifests.add((batch.key.tenant, batch.manifest[0]))

    def _seen(self) -> int:
        with self._connections.reading() as cursor:
            row = Transaction(cursor, self.path).one("clock", ())
            return 0 if row is None else row[0]

    def _note_time(self, transaction: Transaction, now: int) -> None:
        if now >= self._noted + 1_000_000:
            transaction.run("put_clock", (now,))
            self._noted = now

    def _timed(self, transaction: Transaction, found: Lookup, batch: Batch) -> Batch:
        if batch.thread is None:
            return batch
        if found.thread and found.thread.unread:
            batch = with_message(transaction, found.thread, batch)
        if batch.thread is None or batch.thread.due_at is None or batch.thread.due_at > 0:
            return batch
        now = self._now()
        self._note_time(transaction, now)
        return dated(batch, now)

    def _commit_one(
        self, transaction: Transaction, batch: Batch, learned: dict[ThreadKey, Known]
    ) -> Conflict | None:
        key = batch.key
        require_key(key)
        known = learned.get(key) or self._known.get(key)
        try:
            now = self._write_one(transaction, batch, known)
        except Conflict as conflict:
            return conflict
        if now is not None:
            learned[key] = now
        return None

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self._read(key, seq, with_results=True)

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self._read(key, seq, with_results=False)

    def _read(self, key: ThreadKey, seq: int | None, *, with_results: bool) -> Chain | None:
        found = self._glance(key) if seq is None else None
        if found is not None:
            return found[0].chain if found[0] else None
        with self._connections.reading() as cursor:
            log = self._log(Transaction(cursor, self.path), key)
            return _chain(*log, seq, with_results=with_results) if log else None

    def open(self, key: ThreadKey) -> Opened | None:
        found = self._glance(key)
        if found is not None and (found[0] is None or found[0].record):
            return found[0]
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            log = self._log(transaction, key)
            chain = _chain(*log, None, with_results=True) if log else None
            if log is None or chain is None:
                return None
            return Opened(chain, transaction.run_record(log[0], chain.entries[-1].run_id))

    def _glance(self, key: ThreadKey) -> tuple[Opened | None] | None:
        with self._connections.reading(whole=False) as cursor:
            return glance(Transaction(cursor, self.path), key, self._known_of)

    def head(self, key: ThreadKey) -> Entry | None:
        with self._connections.reading() as cursor:
            found = self._log(Transaction(cursor, self.path), key)
            return found[1].newest() if found else None

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        with self._connections.reading() as cursor:
            found = self._log(Transaction(cursor, self.path), key)
            head = found[1].newest() if found else None
            return found[1].results(head.seq) if found and head else []

    def count_results(self, key: ThreadKey, task: str) -> int:
        with self._connections.reading() as cursor:
            found = self._log(Transaction(cursor, self.path), key)
            head = found[1].newest() if found else None
            return found[1].count_results(head.seq, task) if found and head else 0

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        with self._connections.reading() as cursor:
            found = self._log(Transaction(cursor, self.path), key)
            head = found[1].newest() if found else None
            return found[1].locate(checkpoint_id, head.seq) if found and head else None

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        self._connections.check_open()
        return self._history(key, NO_LIMIT if limit is None else limit, before)

    def _history(self, key: ThreadKey, left: int, before: int | None) -> Iterator[Entry]:
        thread: ThreadRow | None = None
        top = 0
        while left > 0:
            with self._connections.reading() as cursor:
                found = self._log(Transaction(cursor, self.path), key)
                if found is None or (thread and thread.id != found[0].id):
                    return
                if thread is None:
                    head = found[1].newest()
                    top = head.seq if head else 0
                    top = top if before is None else min(top, before - 1)
                thread, log = found
                if top < thread.first:
                    return
                page = log.page(top, min(left, _PAGE))
            yield from page
            left -= len(page)
            top -= len(page)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        with self._connections.reading() as cursor:
            found = self._log(Transaction(cursor, self.path), key)
            head = found[1].newest() if found else None
            if found is None or head is None:
                return []
            return found[1].forward(after, head.seq, NO_LIMIT if limit is None else limit)

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            thread = transaction.thread(key)
            return transaction.run_records(thread, limit) if thread else []

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            thread = transaction.thread(key)
            return transaction.run_record(thread, run_id) if thread else None

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            thread = transaction.thread(key)
            return transaction.run_of_input(thread, input_digest) if thread else None

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            thread = transaction.thread(key)
            return transaction.failure(thread, run_id) if thread else None

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        return self._list(tenant, status, limit, after, _warn)

    def _list(
        self,
        tenant: str,
        status: RunStatus | None,
        limit: int | None,
        after: str | None,
        tell: Tell,
    ) -> Sequence[ThreadInfo]:
        wanted = None if status is None else _possible(status)
        with self._connections.reading() as cursor:
            transaction, start = Transaction(cursor, self.path), _least_above(after)
            found = transaction.threads(_possible(tenant), wanted, start, _count(limit), tell)
            return [thread.info for thread in found if thread.info is not None]

    @property
    def tags(self) -> SqliteTags:
        return SqliteTags(self._connections, self.path)

    @property
    def mailbox(self) -> SqliteMailbox:
        return SqliteMailbox(self._connections, self.path, self._now)

    @property
    def memory(self) -> SqliteMemory:
        return SqliteMemory(self._connections, self.path, self._now)

    @property
    def buckets(self) -> SqliteBuckets:
        return SqliteBuckets(self._connections, self.path, self._now)

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        changed, thread, _ = (NO_LIMIT, "", 0) if after is None else place_after(after)
        wanted = () if status is None else (_possible(status),)
        name = "recent_threads" if status is None else "recent_threads_of_status"
        values = (*wanted, _bounded(changed), thread)
        return self._page_of_threads(name, tenant, values, limit)

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        wake_at, thread, _ = (-NO_LIMIT, "", 0) if after is None else place_after(after)
        last = NO_LIMIT if until is None else _bounded(until)
        return self._page_of_threads(
            "waking_threads", tenant, (last, _bounded(wake_at), thread), limit
        )

    def _page_of_threads(
        self, name: str, tenant: str, values: Row, limit: int | None
    ) -> Page[ThreadInfo]:
        tenant = _possible(tenant)
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            values = (tenant, *values)
            found = transaction.placed_threads(name, tenant, values, _count(limit), _warn)
        lines = [thread.info for thread, _ in found if thread.info is not None]
        return Page[ThreadInfo].cut(lines, limit, lambda: (found[-1][1], lines[-1].key.thread, 0))

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        place, thread, number = (NO_LIMIT, "0", 0) if after is None else place_after(after)
        wanted = () if status is None else (_possible(status),)
        name = "recent_runs" if status is None else "recent_runs_of_status"
        tenant = _possible(tenant)
        values = (tenant, *wanted, _bounded(place), _number(thread), _bounded(number))
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            found = transaction.placed_runs(name, tenant, values, _count(limit), _warn)

        def last() -> PageKey:
            place, thread, number = found[-1][1]
            return place, str(thread), number

        return Page[RunRecord].cut([run for run, _ in found], limit, last)

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        with self._connections.reading(whole=False) as cursor:
            thread = Transaction(cursor, self.path).thread(key)
            return thread.info if thread else None

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        with self._connections.reading() as cursor:
            return Transaction(cursor, self.path).manifest(key.tenant, fingerprint)

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        with self._connections.writing() as cursor:
            return delete_thread(Transaction(cursor, self.path), key, head, head_id)

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
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self.path)
            return prune_thread(
                transaction,
                key,
                head=head,
                cut=cut,
                rewritten=rewritten,
                oldest=oldest,
                archived=archived,
            )

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self.path)
            put_entries_back(transaction, key, head=head, oldest=oldest, entries=entries)

    @property
    def maintenance(self) -> Maintenance:
        return self

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        if not threads:
            try:
                place = f"{Path(self.path).as_uri()}?mode=ro"
                with closing(sqlite3.connect(place, uri=True)) as connection:
                    said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            except sqlite3.Error as error:
                said = [str(error)]
            found = tuple(Finding(self.path, line) for line in said if line != "ok")
            if found:
                yield Inspected(findings=found, is_thread=False)
        omitted: dict[Finding, None] = {}

        def tell(error: Corrupted, listed: bool) -> None:
            if not listed:  # or the thread reports it
                omitted[finding_of(error, self.path)] = None

        if threads:
            yield from inspect_listed(self, tenant, threads)
        else:
            yield from inspect_pages(lambda last: self._list(tenant, None, _PAGE, last, tell))
        if omitted:
            yield Inspected(findings=tuple(omitted), is_thread=False)

    def repair(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Repaired]:
        return iter(())

    def beat(self, worker: WorkerInfo) -> None:
        require_worker(worker.id)
        with self._connections.writing() as cursor:
            transaction, now = Transaction(cursor, self.path), self._now()
            transaction.run(
                "put_worker", (*worker_row(worker, now), round(worker.silent_after * 1_000_000))
            )
            self._note_time(transaction, now)

    def retire(self, worker: str) -> int:
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self.path)
            transaction.run("drop_worker", (write_text(worker),))
            return claiming.take_from(transaction, worker, self._now())

    def workers(self) -> Sequence[WorkerInfo]:
        with self._connections.reading() as cursor:
            return claiming.workers(Transaction(cursor, self.path), self._now())

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        require_worker(worker)
        count, named = min(_count(limit), _MOST), [lane for lane in lanes if lane]
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            if not claiming.waiting(transaction, named, self._now(), min(count, 1)):
                return []
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self.path)
            return claiming.claim(transaction, worker, named, self._now(), count, self._rotation)

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        with self._connections.writing() as cursor:
            due_at = self._now() + round(delay * 1_000_000)
            return claiming.give_back(Transaction(cursor, self.path), worker, key, due_at)

    def reclaim(self, timeout: float | None = None) -> int:
        least = self._now(), None if timeout is None else round(timeout * 1_000_000)
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            if (
                not claiming.gone(transaction, least)
                and transaction.one("is_silent", least) is None
            ):
                return 0
        with self._connections.writing() as cursor:
            transaction, due_at = Transaction(cursor, self.path), lost_at(self._now())
            lost = claiming.gone(transaction, least)
            transaction.run("drop_silent", least)
            return sum(claiming.take_from(transaction, worker, due_at) for worker in lost)

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        with self._connections.reading() as cursor:
            return [
                thread.key for thread in claiming.claimed(Transaction(cursor, self.path), worker)
            ]

    def due_in(self, lanes: Sequence[str]) -> float | None:
        with self._connections.reading() as cursor:
            return claiming.due_in(Transaction(cursor, self.path), lanes, self._now())

    def now(self) -> int:
        with self._connections.reading():
            return self._now()

    def depths(self) -> Sequence[LaneDepth]:
        with self._connections.reading() as cursor:
            return claiming.depths(Transaction(cursor, self.path), self._now())

    def overdue(self, age: float) -> Sequence[str]:
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self.path)
            return claiming.overdue(transaction, self._now() - round(age * 1_000_000))

    def limits(self) -> Sequence[Limit]:
        with self._connections.reading() as cursor:
            return [meter.limit for meter in claiming.limits(Transaction(cursor, self.path))]

    def set_limit(self, limit: Limit) -> None:
        with self._connections.writing() as cursor:
            claiming.set_limit(Transaction(cursor, self.path), limit)

    def close(self) -> None:
        self._connections.close()

    def _log(self, transaction: Transaction, key: ThreadKey) -> tuple[ThreadRow, ThreadLog] | None:
        thread = transaction.thread(key)
        if thread is None:
            return None
        return thread, ThreadLog(transaction, thread, self._known_of(thread))

    def _known_of(self, thread: ThreadRow) -> Known:
        known = self._known.get(thread.key)
        if known is None or known.id != thread.id:
            known = Known(thread.id)
            self._remember(thread.key, known)
        return known

    def _remember(self, key: ThreadKey, known: Known) -> None:
        older = self._known.get(key)
        if older is not None and older.id > known.id:
            return
        if len(self._known) >= _REMEMBERED:
            self._known = {}
        self._known[key] = known


@checks_keys
class SqliteTags:
    def __init__(self, connections: Connections, path: str) -> None:
        self._connections = connections
        self._path = path

    def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        with self._connections.reading() as cursor:
            names = [_possible(thread) for thread in threads if "\0" not in thread]
            return Transaction(cursor, self._path).tags_of(_possible(tenant), names)

    def threads(
        self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]:
        names = _possible(tenant), _possible(tag)
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self._path)
            found = transaction.tagged_threads(*names, _least_above(after), _count(limit), _warn)
        return [thread.info for thread in found if thread.info is not None]


def _chain(
    thread: ThreadRow, log: ThreadLog, seq: int | None, *, with_results: bool
) -> Chain | None:
    head = log.newest()
    wanted = seq if seq is not None or head is None else head.seq
    if head is None or wanted is None or not thread.first <= wanted <= head.seq:
        return None
    results = log.results(head.seq) if with_results and wanted == head.seq else []
    return Chain(tuple(log.chain(wanted)), tuple(results))


def _warn(error: Corrupted, listed: bool) -> None:
    how = "listed as it is" if listed else "omitted from a list"
    warnings.warn(printable(f"a row is {how}: {error}"), RuntimeWarning, stacklevel=5)


_MOST = 2**31
"""More threads than any worker claims."""


def _count(limit: int | None) -> int:
    return NO_LIMIT if limit is None else max(0, min(limit, NO_LIMIT))


def _bounded(number: int) -> int:
    return max(-NO_LIMIT, min(number, NO_LIMIT))


def _number(thread: str) -> int:
    if not thread.isdecimal() or len(thread) > 18:
        raise InvalidRequest("after= is not the `after` of a page of runs")
    return int(thread)


def _possible(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        return ""
    return name


def _least_above(after: str | None) -> str:
    if after is None:
        return ""
    for index, letter in enumerate(after):
        if "\ud800" <= letter <= "\udfff":
            return after[:index] + "\ue000"
    return after + "\0"
