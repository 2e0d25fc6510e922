"""A store in PostgreSQL. Many processes may share it; so may many tenants.

Rules:

- A commit is one round trip, and so is a group of them: see committing.py.
- Nothing is kept in a session: a transaction-mode pooler may stand between.
- Reads are tried again when the server was lost; a commit of unknown outcome is resolved.
- A deletion is a tombstone in the log, and then small batches. A seq in the table is never used
  twice, so that no late writer meets a thread that was begun anew.
- A run's ``started_at`` never changes: the thread index keeps the newest run by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from milecastle.errors import InvalidRequest, StoreError, Unavailable
from milecastle.model.checkpoint import SNAPSHOT, Entry
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.store import Batch, Chain
from milecastle.stores.postgres import rows
from milecastle.stores.postgres.address import Address, parse
from milecastle.stores.postgres.committing import Commits, conflict
from milecastle.stores.postgres.failures import failure_from
from milecastle.stores.postgres.ids import id_to, time_of
from milecastle.stores.postgres.migrating import LATEST, check_server, connect, update, version_of
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.security import check_protection
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.text import escape, is_plain, thread_bounds
from milecastle.stores.postgres.translating import Lost, Taken

__all__ = ["PostgresStore"]

_PAGE = 200
_BATCH = 1000
_FURTHEST = 2**32 - 1
"""Above any seq, and still within a thread's life."""
_SIDE_BY_SIDE = 4
"""So many commits on as many connections are as fast as a group of them, or faster."""


class PostgresStore:
    """Keeps logs in a schema of a PostgreSQL database, version 15 or later.

    ``url`` is ``postgresql://user@host/database``, with several hosts if need be, and with these
    options of ours beside PostgreSQL's own: ``schema`` (milecastle), ``prepare`` (on), ``rls``
    (off), ``migrate`` (on), ``min_size`` (1), ``max_size`` (10), ``timeout`` in seconds (30) and
    ``synchronous_commit`` (on; ``off`` accepts a server that may lose commits).
    """

    blocking = True
    rollup_after = 512

    def __init__(self, url: str) -> None:
        address = parse(url)
        self.writers = min(_SIDE_BY_SIDE, address.max_size)
        _prepare(address)
        self._sql = Statements(address.schema)
        self._pool = Pool(address)
        self._commits = Commits(
            self._pool, self._sql, head=lambda key: self._head(key)[0], is_there=self._is_there
        )

    def commit(self, batch: Batch) -> None:
        """Append the batch, or raise ``Conflict`` and change nothing."""
        self._commits.one(batch)

    def commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        """Append the batches in one transaction; what became of each."""
        self._pool.check_open()
        return self._commits.many(batches)

    def transact(self, key: ThreadKey, work: Callable[[Any], Batch]) -> None:
        """Let ``work`` write in the transaction that commits the results that it returns."""
        self._pool.check_open()
        self._commits.within(key, work, self._has_results)

    def _has_results(self, batch: Batch) -> bool:
        chain = self.read(batch.key)
        kept = {result.task: result.payload for result in chain.results} if chain else {}
        return all(kept.get(result.task) == result.payload for result in batch.results)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint, or ``None``."""
        found = self._read(self._sql.read, key, seq=None if seq is None else _within(seq))
        entries = rows.entries_from(found)
        if not entries:
            return None
        results = tuple(rows.result_from(row) for row in found if row[0] == rows.RESULT)
        return Chain(_from_newest_snapshot(entries), results)

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """The seq of a checkpoint, or ``None``.

        An id that tells its time is found at once; for any other the thread is looked through.
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
        """Entries newest first, without payloads. Nothing is held between two pages."""
        self._pool.check_open()
        below = _FURTHEST if before is None else _within(before)
        return self._pages(self._sql.history, "before", key, below, limit)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Entries oldest first, with payloads."""
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
        """The thread's runs, newest first."""
        found = self._read(self._sql.runs, key, limit=_count(limit))
        return [rows.run_from(key, row) for row in found]

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """One run, or ``None``."""
        found = self._read(self._sql.run, key, run_id=escape(run_id))
        return rows.run_from(key, found[0]) if found else None

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """The failure of one run, or ``None``."""
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
        """The tenant's threads by thread id."""
        self._pool.check_open()
        if not is_plain(tenant) or not is_plain(status or ""):
            return []
        lowest, skipped = thread_bounds(after)
        query = self._sql.threads if status is None else self._sql.threads_by_status
        parameters: Parameters = {
            "tenant": tenant,
            "status": status,
            "from": lowest,
            "after": skipped,
            "limit": _count(limit),
        }
        found = self._retry(query, parameters, tenant)
        return [rows.info_from(tenant, row) for row in found]

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """A stored manifest, or ``None``."""
        found = self._read(self._sql.manifest, key, fingerprint=escape(fingerprint))
        return found[0][0] if found else None

    def delete(self, key: ThreadKey, *, head: int | None = None) -> bool:
        """Remove the thread. What nobody can read any more goes in small batches."""
        was_there = self._head(key)[0] > 0 or bool(self.runs(key, limit=1))
        found = self._bury(key, head, was_there)
        while self._read(self._sql.sweep_entries, key, limit=_BATCH)[0][0] == _BATCH:
            pass
        self._read(self._sql.sweep_results, key)
        return found

    def _bury(self, key: ThreadKey, head: int | None, was_there: bool) -> bool:
        """Put the tombstone up; whether there was anything. Again, if somebody appended first."""
        in_doubt = False
        for number, _ in enumerate(self._pool.attempts()):
            place = {"gap": 1 if number < 3 else _BATCH, "head": head}
            parameters = rows.key_parameters(key, **place)
            statements = [(self._sql.bury, parameters), (self._sql.sweep_records, parameters)]
            try:
                (buried,), (runs,) = self._pool.run_together(statements, key.tenant)
            except Taken:
                continue
            except Lost:
                in_doubt = True
                continue
            if buried[1]:
                return buried[0] + runs[0] > 0 or (in_doubt and was_there)
            found = self._head(key)[0]
            if in_doubt and was_there and not found:
                return True
            raise conflict(key, head or 0, found)
        raise Unavailable(f"thread '{key.thread}' could not be deleted in time: try again")

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries by snapshots and drop what is below ``cut``, in small batches."""
        found, limit = self._head(key)
        if found != head:
            raise conflict(key, head, found)
        highest = max([cut, *(entry.seq for entry in rewritten)])
        if highest > limit:
            raise InvalidRequest(
                f"thread '{key.thread}' cannot be pruned above seq {limit}: "
                "its writer may still roll up what is there"
            )
        kept = [entry for entry in rewritten if entry.seq >= cut]
        page: Parameters = {"cut": _within(cut), "limit": _BATCH}
        parameters = {"head": head, "highest": highest, **rows.rewritten_parameters(kept), **page}
        try:
            passed = self._pool.run(
                self._sql.prune, rows.key_parameters(key, **parameters), key.tenant
            )
        except Lost as lost:
            raise Unavailable(f"PostgreSQL was lost while pruning: {lost}; prune again") from lost
        if not passed and head:
            raise conflict(key, head, self._head(key)[0])
        if not passed:
            return 0
        life, dropped = passed[0]
        return self._prune_on(key, life, dropped, page)

    def _prune_on(self, key: ThreadKey, life: int, dropped: int, page: Parameters) -> int:
        last = dropped
        while last == _BATCH:
            last = self._read(self._sql.prune_on, key, life=life, **page)[0][0]
            dropped += last
        return dropped

    def close(self) -> None:
        """Close every connection; every later call raises ``Unavailable``."""
        self._pool.close()

    def _is_there(self, batch: Batch) -> bool:
        """Whether a batch is written, as far as reading can tell; results alone are sent again."""
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
        """The head's seq and its ``roll_seq``; 0 and 0 if there is none."""
        found = self._read(self._sql.head, key)
        return (found[0][0], found[0][1]) if found else (0, 0)

    def _read(self, query: bytes, key: ThreadKey, **parameters: object) -> list[Row]:
        return self._retry(query, rows.key_parameters(key, **parameters), key.tenant)

    def _retry(self, query: bytes, parameters: Parameters, tenant: str) -> list[Row]:
        """Run what may be run twice, until there is an answer."""
        lost: Lost | None = None
        for _ in self._pool.attempts():
            try:
                return self._pool.run(query, parameters, tenant)
            except Lost as again:
                lost = again
        raise Unavailable(f"PostgreSQL was lost and did not come back in time: {lost}") from lost


def _prepare(address: Address) -> None:
    """Look at the server, bring the schema up to date if that is asked for, and check the rest."""
    with connect(address) as connection:
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


def _count(limit: int | None) -> int | None:
    """A limit that the database can take."""
    return None if limit is None else _within(limit)


def _from_newest_snapshot(entries: list[Entry]) -> tuple[Entry, ...]:
    """Drop what a snapshot repeats: pruning may have put one into the middle of a chain."""
    first = len(entries) - 1
    while first > 0 and entries[first].kind != SNAPSHOT:
        first -= 1
    return tuple(entries[first:])
