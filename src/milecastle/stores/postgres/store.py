"""A store in PostgreSQL. Many processes may share it; so may many tenants.

Rules:

- A commit is one round trip, and so is a group: see committing.py.
- No session state is used: a transaction-mode pooler may be in between.
- Reads are retried when the server was lost; a commit with an unknown outcome is resolved.
- A deletion is a tombstone in the log, and then small batches. A seq in the table is never used
  twice, so no late writer meets a thread created again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from milecastle.errors import Corrupted, InvalidRequest, StoreError, Unavailable
from milecastle.model.checkpoint import Entry, TaskResult, item_bounds
from milecastle.model.keys import ThreadKey, checks_keys, require_key
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.claims import is_due
from milecastle.ports.fencing import (
    check_cut,
    conflict,
    from_newest_snapshot,
    message_waits,
    pruned_meanwhile,
)
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
from milecastle.ports.notifying import Listen
from milecastle.ports.pages import Page, PageKey, place_after
from milecastle.ports.store import (
    Batch,
    Capabilities,
    Chain,
    CommitMany,
    Join,
    JoinedStore,
    Opened,
    ReadMany,
    Transact,
)
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.postgres import rows
from milecastle.stores.postgres.address import ServerAddress
from milecastle.stores.postgres.arrays import ShardColumn, TextColumn
from milecastle.stores.postgres.buckets import PostgresBuckets
from milecastle.stores.postgres.claiming import Claims, Repeat
from milecastle.stores.postgres.committing import Commits
from milecastle.stores.postgres.feed import PostgresFeed
from milecastle.stores.postgres.joining import JoinedConnection, JoinedSchema
from milecastle.stores.postgres.mailbox import PostgresMailbox
from milecastle.stores.postgres.memory import PostgresMemory
from milecastle.stores.postgres.migrating import (
    LATEST,
    Connection,
    PostgresServer,
    check_server,
    connect,
    update,
    version_of,
)
from milecastle.stores.postgres.notify import DueListener, Listener
from milecastle.stores.postgres.placements import membership_of
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.replica import Opening, PostgresReplica
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.security import check_protection
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.translating import Lost, Taken, Unreachable
from milecastle.stores.postgres.values import (
    escape,
    failure_from,
    id_to,
    is_plain,
    is_uuid,
    thread_bounds,
    time_of,
    unescape,
)
from milecastle.support.printable import printable, quoted

_PAGE = 200
_BATCH = 1000
_FURTHEST = 2**32 - 1
"""Above any seq that a thread can have."""
_FURTHEST_PLACE = 2**62
"""Beyond any number of a list."""
_TOGETHER = 100
"""How many chains one statement reads: for more, the server would find it worth compiling."""
_IMPOSSIBLE = (Corrupted, InvalidRequest, LookupError, TypeError, ValueError)
"""What reading a row with an impossible value raises."""

_Tell = Callable[[Corrupted], None]
"""Gets the damage of a row that is omitted from a list."""

_ByName = Callable[..., Sequence[ThreadInfo]]

T = TypeVar("T")
Located = tuple[PageKey, T]
"""An item of a list with its place there."""


@checks_keys
class PostgresStore(PostgresServer, Capabilities):
    """Stores logs in a PostgreSQL schema, version 15 or later.

    ``url`` is ``postgresql://user@host/database``, with several hosts if needed, and with these
    options besides PostgreSQL's own: ``schema`` (milecastle), ``prepare`` (on), ``rls`` (off),
    ``migrate`` (on), ``min_size`` (1), ``max_size`` (10), ``timeout`` in seconds (30),
    ``synchronous_commit`` (on; ``off`` accepts a server that may lose commits) and ``replica``: the
    URL of a standby, from which lists are read.
    """

    blocking = True
    rollup_after = 512
    _is_placed = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._connect(self._address)
        self._replica = self._replica_at(self._address.replica)

    def _connect(self, address: ServerAddress) -> None:
        with connect(address) as connection:
            self._prepare(connection)
        self._sql = Statements(address.schema, placed=self._is_placed)
        self._pool = Pool(address)
        self._due_listener = DueListener(self._pool, address.schema)
        self._memory = PostgresMemory(self._pool, self._sql, self._retry)
        self._commits = Commits(
            self._pool,
            self._sql,
            head=lambda key: self._head(key)[0],
            is_there=self._is_there,
            elsewhere=self._elsewhere,
            woken=self._due_listener.ring,
            changed=self._memory.of_batch,
        )
        self._claims = Claims(self._pool, self._sql, self._retry)
        self._feed = PostgresFeed(self._pool)

    def _replica_at(self, address: ServerAddress | None) -> PostgresReplica | None:
        if address is None:
            return None

        def open_standby() -> Opening:
            standby = _Standby(address)
            return Opening(standby, standby._retry)

        return PostgresReplica(Opening(self, self._retry), open_standby)

    def _prepare(self, connection: Connection) -> None:
        prepare(connection, self._address)
        member = membership_of(connection, self._address.schema)
        if member is not None:
            raise StoreError(
                f"schema '{self._address.schema}' is database '{member.name}' of a map, and has "
                "only some of its shards: open the map, store='shards.toml'"
            )

    def _elsewhere(self, key: ThreadKey) -> StoreError | None:
        return None

    def commit(self, batch: Batch) -> None:
        self._commits.one(batch)
        if is_due(batch):
            self._due_listener.ring()

    @property
    def writers(self) -> int:
        return self._address.writers

    @property
    def commit_many(self) -> CommitMany:
        return self._commit_many

    def _commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        self._pool.check_open()
        outcomes = self._commits.many(batches)
        if any(map(is_due, batches)):
            self._due_listener.ring()
        return outcomes

    @property
    def listen(self) -> Listen:
        return partial(Listener, self._address)

    @property
    def transact(self) -> Transact:
        return self._transact

    def _transact(self, key: ThreadKey, work: Callable[[Any], Batch]) -> bool:
        require_key(key)
        self._pool.check_open()
        return self._commits.within(key, work, self._settled_results)

    @property
    def join(self) -> Join:
        return self._join

    def _join(self, connection: Any, key: ThreadKey) -> JoinedStore:
        require_key(key)
        self._pool.check_open()
        joined = JoinedConnection(connection, self._pool, key, self._elsewhere)
        return JoinedSchema(joined, self._commits, self._sql, self.thread)

    @property
    def ring(self) -> Callable[[], None]:
        return self._due_listener.ring

    def _settled_results(self, key: ThreadKey) -> Sequence[TaskResult]:
        asked = rows.key_parameters(key)
        found = self._retry(self._sql.results, asked, key.tenant, self._sql.lock_thread)
        return _results_from(found)

    def _has_results(self, batch: Batch) -> bool:
        kept = {result.task: result.payload for result in self.results(batch.key)}
        return all(kept.get(result.task) == result.payload for result in batch.results)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        found = self._read(self._sql.read, key, seq=None if seq is None else _within(seq))
        return _chain_from(found)

    def open(self, key: ThreadKey) -> Opened | None:
        return self._opened(key, self._read(self._sql.open, key, seq=None))

    @property
    def read_many(self) -> ReadMany:
        return self._read_many

    def _read_many(self, keys: Sequence[ThreadKey]) -> Mapping[ThreadKey, Opened]:
        self._pool.check_open()
        visible: dict[str, list[ThreadKey]] = {}  # row-level security shows one tenant at a time
        for key in keys:
            visible.setdefault(key.tenant if self._address.rls else "", []).append(key)
        found: dict[ThreadKey, Opened] = {}
        for tenant, some in visible.items():
            for first in range(0, len(some), _TOGETHER):
                found |= self._read_some(some[first : first + _TOGETHER], tenant)
        return found

    def _read_some(self, keys: Sequence[ThreadKey], tenant: str) -> dict[ThreadKey, Opened]:
        found = _numbered(self._retry(self._sql.read_many, _key_columns(keys), tenant))
        each = {keys[number]: self._opened(keys[number], own) for number, own in found.items()}
        return {key: opened for key, opened in each.items() if opened is not None}

    def _opened(self, key: ThreadKey, found: Sequence[Row]) -> Opened | None:
        """A chain with the record read with it.

        The statement finds the record by a run id that is a UUID, or the one in the index; any
        other, which milecastle never makes, takes a second read.
        """
        chain = _chain_from(found)
        if chain is None:
            return None
        run_id = chain.entries[-1].run_id
        record = rows.record_from(key, found)
        if record is None or record.run_id != run_id:
            record = None if is_uuid(run_id) else self.run(key, run_id)
        return Opened(chain, record)

    def head(self, key: ThreadKey) -> Entry | None:
        return next(self.history(key, limit=1), None)

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        return _results_from(self._read(self._sql.results, key))

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        found = self._read(self._sql.read_state, key, seq=None if seq is None else _within(seq))
        return _chain_from(found)

    def count_results(self, key: ThreadKey, task: str) -> int:
        first, last = map(escape, item_bounds(task))
        found = self._read(self._sql.count_results, key, task=escape(task), first=first, last=last)
        return int(found[0][0])

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """A checkpoint's seq, or ``None``.

        A UUIDv7 is found directly by its time; for any other id the thread is scanned.
        """
        identifier = id_to(checkpoint_id)
        time = time_of(identifier)
        found: list[Row] = []
        if time is not None:
            found = self._read(self._sql.locate, key, id=identifier, time=time)
        found = found or self._read(self._sql.locate_anywhere, key, id=identifier)
        return found[0][0] if found else None

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        self._pool.check_open()
        below = _FURTHEST if before is None else _within(before)
        return self._pages(self._sql.history, "before", key, below, limit)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        self._pool.check_open()
        return list(self._pages(self._sql.entries, "after", key, _within(after), limit))

    def _pages(
        self, query: bytes, bound: str, key: ThreadKey, place: int, limit: int | None
    ) -> Iterator[Entry]:
        life: int | None = None
        left = _FURTHEST if limit is None else limit
        while left > 0:
            size = min(left, _PAGE)
            found = self._read(query, key, **{"life": life, bound: place, "limit": size})
            entries = rows.entries_from(found)
            yield from entries
            if len(entries) < size:
                return
            left -= size
            place, life = entries[-1].seq, found[0][16]

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        found = self._read(self._sql.runs, key, limit=_count(limit))
        return [rows.run_from(key, row) for row in found]

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        found = self._read(self._sql.run, key, run_id=escape(run_id))
        return rows.run_from(key, found[0]) if found else None

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        found = self._read(self._sql.run_of_input, key, digest=escape(input_digest))
        return rows.run_from(key, found[0]) if found else None

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        found = self._read(self._sql.failure, key, run_id=escape(run_id))
        return failure_from(run_id, found[0][0]) if found else None

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        self._pool.check_open()
        if not is_plain(tenant) or not is_plain(status or ""):
            return []
        return self._list(tenant, status, limit, after, _warn)

    def _list(
        self,
        tenant: str,
        status: RunStatus | None,
        limit: int | None,
        after: str | None,
        tell: _Tell,
    ) -> Sequence[ThreadInfo]:
        query = self._sql.threads if status is None else self._sql.threads_by_status
        return self._by_name(query, tenant, limit, after, tell, status=status)

    def _by_name(
        self,
        query: bytes,
        tenant: str,
        limit: int | None,
        after: str | None,
        tell: _Tell,
        **wanted: str | None,
    ) -> Sequence[ThreadInfo]:
        lowest, skipped = thread_bounds(after)
        asked: Parameters = {"tenant": tenant, "from": lowest, "after": skipped, **wanted}

        def fetch(limit: int | None) -> Sequence[Row]:
            return self._retry(query, {**asked, "limit": _count(limit)}, tenant)

        return [line for line, _ in _lines(tenant, limit, fetch, tell)]

    @property
    def tags(self) -> PostgresTags:
        return PostgresTags(self._pool, self._sql, self._retry, self._by_name)

    @property
    def mailbox(self) -> PostgresMailbox:
        return PostgresMailbox(
            self._pool, self._sql, self._retry, self._elsewhere, self._due_listener.ring
        )

    @property
    def memory(self) -> PostgresMemory:
        return self._memory

    @property
    def buckets(self) -> PostgresBuckets:
        return PostgresBuckets(self._pool, self._sql, self._retry)

    @property
    def feed(self) -> PostgresFeed:
        return self._feed

    @property
    def replica(self) -> PostgresReplica | None:
        return self._replica

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        found = self._recent_lines(tenant, status, limit, after)
        return Page[ThreadInfo].cut((line for _, line in found), limit, lambda: found[-1][0])

    def _recent_lines(
        self, tenant: str, status: RunStatus | None, limit: int | None, after: str | None
    ) -> list[Located[ThreadInfo]]:
        changed, thread, _ = (_FURTHEST_PLACE, "", 0) if after is None else place_after(after)
        query = self._sql.recent_threads if status is None else self._sql.recent_threads_by_status
        place: Parameters = {"status": status, "changed": _number(changed), "thread": thread}
        return self._located(query, tenant, limit, place, 14)

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        found = self._waking_lines(tenant, until, limit, after)
        return Page[ThreadInfo].cut((line for _, line in found), limit, lambda: found[-1][0])

    def _waking_lines(
        self, tenant: str, until: int | None, limit: int | None, after: str | None
    ) -> list[Located[ThreadInfo]]:
        wake_at, thread, _ = (-_FURTHEST_PLACE, "", 0) if after is None else place_after(after)
        last = _FURTHEST_PLACE if until is None else _number(until)
        place: Parameters = {"until": last, "wake_at": _number(wake_at), "thread": thread}
        return self._located(self._sql.waking_threads, tenant, limit, place, 6)

    def _located(
        self, query: bytes, tenant: str, limit: int | None, place: Parameters, column: int
    ) -> list[Located[ThreadInfo]]:
        found = _lines(tenant, limit, lambda limit: self._page(query, tenant, limit, place), _warn)
        return [((row[column], row[0], 0), line) for line, row in found]

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        found = self._recent_records(tenant, status, limit, after)
        return Page[RunRecord].cut((run for _, run in found), limit, lambda: found[-1][0])

    def _recent_records(
        self, tenant: str, status: RunStatus | None, limit: int | None, after: str | None
    ) -> list[Located[RunRecord]]:
        place, thread, number = (_FURTHEST_PLACE, "", 0) if after is None else place_after(after)
        query = self._sql.recent_runs if status is None else self._sql.recent_runs_by_status
        start: Parameters = {"place": _number(place), "thread": thread, "number": _number(number)}
        found = self._page(query, tenant, limit, {"status": status, **start})
        return [(row[13:16], rows.run_from(ThreadKey(tenant, row[14]), row[:13])) for row in found]

    def _page(
        self, query: bytes, tenant: str, limit: int | None, parameters: Parameters
    ) -> list[Row]:
        self._pool.check_open()
        names = (tenant, parameters.get("status"), parameters["thread"])
        if not all(is_plain(name) for name in names if name is not None):
            return []
        asked = {"tenant": tenant, "limit": _count(limit), **parameters}
        return self._retry(query, asked, tenant)

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        found = self._read(self._sql.thread, key)
        return rows.info_from(key.tenant, found[0]) if found else None

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        found = self._read(self._sql.manifest, key, fingerprint=escape(fingerprint))
        return found[0][0] if found else None

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        found = self._end(key, head, head_id)
        self._sweep(key)
        return found

    def _end(self, key: ThreadKey, head: int | None, head_id: str | None) -> bool:
        life = self._read(self._sql.life, key)[0][0]
        was_there = self._head(key)[0] > 0 or bool(self.runs(key, limit=1))
        return self._bury(key, head, head_id, was_there, life)

    def _sweep(self, key: ThreadKey) -> None:
        while self._read(self._sql.sweep_entries, key, limit=_BATCH)[0][0] == _BATCH:
            pass
        self._read(self._sql.sweep_results, key)

    def _bury(
        self, key: ThreadKey, head: int | None, head_id: str | None, was_there: bool, life: int
    ) -> bool:
        """Write the tombstone; return whether there was anything.

        Retried if another writer appended first. If an answer was lost, only ``life`` is ended: the
        thread may have been created again since.
        """
        in_doubt = False
        for number, _ in enumerate(self._pool.attempts()):
            id = None if head_id is None else id_to(head_id)
            place = {"gap": 1 if number < 3 else _BATCH, "head": head, "head_id": id}
            place["life"] = life if in_doubt else None
            parameters = rows.key_parameters(key, **place)
            queries = self._sql.lock_thread, self._sql.bury, self._sql.sweep_records
            statements = [(query, parameters) for query in queries]
            try:
                _, (buried,), (runs,) = self._pool.run_together(statements, key.tenant)
            except Taken:
                continue
            except Lost:
                in_doubt = True
                continue
            if buried[1]:
                return buried[0] + runs[0] > 0 or (in_doubt and was_there)
            found, elsewhere = self._head(key)[0], self._elsewhere(key)
            if elsewhere is not None:
                raise elsewhere
            if in_doubt and self._read(self._sql.life, key)[0][0] != life:
                return was_there
            if head in (None, found) and buried[2]:
                raise message_waits(key, found)
            expected = found + 1 if head in (None, found) else head
            raise conflict(key, expected or 0, found)
        raise Unavailable(f"thread '{key.thread}' could not be deleted in time: try again")

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
        found, limit = self._head(key)
        if found != head:
            raise conflict(key, head, found)
        highest = max([cut, *(entry.seq for entry in rewritten)])
        check_cut(key, limit, cut, rewritten)
        kept = [entry for entry in rewritten if entry.seq >= cut]
        most = head if archived else _BATCH  # what was archived goes at once
        page: Parameters = {"cut": _within(cut), "limit": most}
        parameters = {
            "head": head,
            "highest": highest,
            "archived": archived,
            **rows.oldest_parameters(oldest),
            **rows.rewritten_parameters(kept),
            **page,
        }
        given = rows.key_parameters(key, **parameters)
        statements = [(query, given) for query in (self._sql.lock_thread, self._sql.prune)]
        try:
            _, passed = self._pool.run_together(statements, key.tenant)
        except Lost as lost:
            raise Unavailable(
                f"the connection to PostgreSQL was lost while pruning: {lost}; prune again"
            ) from lost
        if not passed and head:
            found = self._head(key)[0]
            refused = conflict(key, head, found) if found != head else pruned_meanwhile(key, head)
            raise self._elsewhere(key) or refused
        if not passed:
            return 0
        life: int = passed[0][0]
        dropped: int = passed[0][1]
        return dropped + (self._prune_on(key, life, page) if most in passed[0][1:] else 0)

    def _prune_on(self, key: ThreadKey, life: int, page: Parameters) -> int:
        dropped = 0
        while True:
            last = self._read(self._sql.prune_on, key, life=life, **page)[0]
            dropped += int(last[0])
            if _BATCH not in last:
                return dropped

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        place = {"head": head, **rows.oldest_parameters(oldest)}
        given = rows.key_parameters(key, **place, **rows.entry_parameters(entries))
        statements = [(query, given) for query in (self._sql.lock_thread, self._sql.put_back)]
        try:
            _, passed = self._pool.run_together(statements, key.tenant)
        except Lost as lost:
            raise Unavailable(
                f"the connection to PostgreSQL was lost: {lost}; restore the thread again"
            ) from lost
        if not passed:
            found = self._head(key)[0]
            refused = conflict(key, head, found) if found != head else pruned_meanwhile(key, head)
            raise self._elsewhere(key) or refused

    @property
    def maintenance(self) -> Maintenance:
        return self

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        if threads:
            yield from inspect_listed(self, tenant, threads)
            return
        omitted: dict[Finding, None] = {}

        def tell(error: Corrupted) -> None:
            omitted[finding_of(error, "the index of threads")] = None

        yield from inspect_pages(lambda last: self._list(tenant, None, _PAGE, last, tell))
        if omitted:
            yield Inspected(findings=tuple(omitted), is_thread=False)

    def repair(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Repaired]:
        return iter(())

    def beat(self, worker: WorkerInfo) -> None:
        self._claims.beat(worker)

    def retire(self, worker: str) -> int:
        given_back = self._claims.retire(worker)
        if given_back:
            self._due_listener.ring()
        return given_back

    def workers(self) -> Sequence[WorkerInfo]:
        return self._claims.workers()

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        return self._claims.claim(worker, lanes, limit)

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        return self._claims.give_back(worker, key, delay)

    def reclaim(self, timeout: float | None = None) -> int:
        return self._claims.reclaim(timeout)

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        return self._claims.claimed(worker)

    def due_in(self, lanes: Sequence[str]) -> float | None:
        return self._claims.due_in(lanes)

    def now(self) -> int:
        return self._claims.now()

    def depths(self) -> Sequence[LaneDepth]:
        return self._claims.depths()

    def overdue(self, age: float) -> Sequence[str]:
        return self._claims.overdue(age)

    def limits(self) -> Sequence[Limit]:
        return self._claims.limits()

    def set_limit(self, limit: Limit) -> None:
        self._claims.set_limit(limit)
        self._due_listener.ring()

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
        self._due_listener.close()
        self._feed.close()
        self._pool.close()

    def _is_there(self, batch: Batch) -> bool:
        key, failure = batch.key, batch.failure
        if batch.entries:
            last = batch.entries[-1]
            parameters = rows.key_parameters(key, seq=last.seq, id=id_to(last.id))
            return bool(self._pool.run(self._sql.entry_at, parameters, key.tenant))
        if not batch.runs and failure is None:
            return False
        records = all(self.run(key, run.run_id) == run for run in batch.runs)
        return records and (failure is None or self.failure(key, failure.run_id) == failure)

    def _head(self, key: ThreadKey) -> tuple[int, int]:
        found = self._read(self._sql.head, key)
        return (found[0][0], found[0][1]) if found else (0, 0)

    def _read(self, query: bytes, key: ThreadKey, **parameters: object) -> list[Row]:
        return self._retry(query, rows.key_parameters(key, **parameters), key.tenant)

    def _retry(
        self, query: bytes, parameters: Parameters, tenant: str, first: bytes | None = None
    ) -> list[Row]:
        """Run an idempotent statement, until there is an answer.

        ``first`` runs before it, in the same transaction: the query sees the rows it waited for.
        """
        lost: Lost | None = None
        for _ in self._pool.attempts():
            try:
                if first is not None:
                    together = [(first, parameters), (query, parameters)]
                    return self._pool.run_together(together, tenant)[1]
                return self._pool.run(query, parameters, tenant)
            except Lost as again:
                lost = again
        raise Unreachable(
            f"the connection to PostgreSQL was lost and could not be restored in time: {lost}"
        ) from lost


class _Standby(PostgresStore):
    """A store on a standby: ``PostgresReplica`` has only its methods that read."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._replica = None
        self._connect(address)

    def _prepare(self, connection: Connection) -> None:
        if version_of(connection, self._address.schema) < LATEST:
            raise StoreError(f"schema '{self._address.schema}' is not up to date on the replica")
        check_protection(connection, self._address.schema, wanted=self._address.rls)


@checks_keys
class PostgresTags:
    def __init__(self, pool: Pool, statements: Statements, retry: Repeat, by_name: _ByName) -> None:
        self._pool = pool
        self._sql = statements
        self._retry = retry
        self._by_name = by_name

    def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        self._pool.check_open()
        names = [thread for thread in threads if is_plain(thread)]
        if not names or not is_plain(tenant):
            return {}
        found: dict[str, tuple[str, ...]] = {}
        asked = {"tenant": tenant, "threads": names}
        for thread, tag in self._retry(self._sql.tags_of, asked, tenant):
            found[thread] = (*found.get(thread, ()), tag)
        return found

    def threads(
        self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]:
        self._pool.check_open()
        if not is_plain(tenant) or not is_plain(tag):
            return []
        return self._by_name(self._sql.tagged_threads, tenant, limit, after, _warn, tag=tag)


def _results_from(found: Sequence[Row]) -> list[TaskResult]:
    return [TaskResult(seq=row[0], task=unescape(row[1]), payload=row[2]) for row in found]


def _chain_from(found: Sequence[Row]) -> Chain | None:
    entries = rows.entries_from(found)
    if not entries:
        return None
    results = tuple(rows.result_from(row) for row in found if row[0] == rows.RESULT)
    return Chain(from_newest_snapshot(entries), results)


def _key_columns(keys: Sequence[ThreadKey]) -> Parameters:
    return {
        "shards": ShardColumn.of([key.shard for key in keys]),
        "tenants": TextColumn.of([key.tenant for key in keys]),
        "threads": TextColumn.of([key.thread for key in keys]),
    }


def _numbered(found: Sequence[Row]) -> dict[int, list[Row]]:
    numbered: dict[int, list[Row]] = {}
    for row in found:
        numbered.setdefault(row[-1] - 1, []).append(row)
    return numbered


def prepare(connection: Connection, address: ServerAddress) -> None:
    check_server(connection, address)
    if version_of(connection, address.schema) < LATEST:
        if not address.migrate:
            raise StoreError(
                f"schema '{address.schema}' is not up to date: run "
                "milecastle.stores.postgres.migrate(url) as its owner"
            )
        update(connection, address.schema)
    check_protection(connection, address.schema, wanted=address.rls)


def _within(seq: int) -> int:
    return max(0, min(seq, _FURTHEST))


def _number(place: int) -> int:
    return max(-_FURTHEST_PLACE, min(place, _FURTHEST_PLACE))


def _count(limit: int | None) -> int | None:
    return None if limit is None else _within(limit)


def _lines(
    tenant: str, limit: int | None, fetch: Callable[[int | None], Sequence[Row]], tell: _Tell
) -> list[tuple[ThreadInfo, Row]]:
    try:
        return [(rows.info_from(tenant, row[:14]), row) for row in fetch(limit)]
    except _IMPOSSIBLE:
        found: list[tuple[ThreadInfo, Row]] = []
        for row in fetch(None):
            try:
                found.append((rows.info_from(tenant, row[:14]), row))
            except _IMPOSSIBLE:
                place = f"table threads, tenant {quoted(tenant)}, thread {quoted(row[0])}"
                tell(Corrupted("a row has a value that milecastle never writes", place=place))
        return found[:limit]


def _warn(error: Corrupted) -> None:
    message = f"a row is omitted from a list: {error}"
    warnings.warn(printable(message), RuntimeWarning, stacklevel=5)
