"""A store in PostgreSQL. Many processes may share it; so may many tenants.

Rules:

- A step is one INSERT and one round trip; so is any other batch. The primary key is the fence.
- Nothing is kept in a session: a transaction-mode pooler may stand between.
- Reads are tried again when the server was lost; a commit of unknown outcome is resolved.
- A deletion is a tombstone in the log, and then small batches. A seq in the table is never used
  twice, so that no late writer meets a thread that was begun anew.
- A run's ``started_at`` never changes: the thread index keeps the newest run by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from milecastle.errors import Conflict, InvalidRequest, StoreError, Unavailable
from milecastle.model.checkpoint import SNAPSHOT, Entry
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.store import Batch, Chain
from milecastle.stores.postgres import rows
from milecastle.stores.postgres.address import Address, parse
from milecastle.stores.postgres.migrating import LATEST, check_server, connect, update, version_of
from milecastle.stores.postgres.outcome import resolve
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.rows import Numbered, Parameters, Row
from milecastle.stores.postgres.security import check_protection
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.text import escape, is_plain, thread_bounds
from milecastle.stores.postgres.translating import Lost, Taken

__all__ = ["PostgresStore"]

_PAGE = 200
_BATCH = 1000
_FURTHEST = 2**62
"""Above and below any seq, and far enough from the ends of a bigint to be added to one."""


class PostgresStore:
    """Keeps logs in a schema of a PostgreSQL database, version 15 or later.

    ``url`` is ``postgresql://user@host/database``, with several hosts if need be, and with these
    options of ours beside PostgreSQL's own: ``schema`` (milecastle), ``prepare`` (on), ``rls``
    (off), ``migrate`` (on), ``min_size`` (1), ``max_size`` (10), ``timeout`` in seconds (30) and
    ``synchronous_commit`` (on; ``off`` accepts a server that may lose commits).
    """

    blocking = True
    rollup_after = 128

    def __init__(self, url: str) -> None:
        address = parse(url)
        _prepare(address)
        self._sql = Statements(address.schema)
        self._pool = Pool(address)

    def commit(self, batch: Batch) -> None:
        """Append the batch, or raise ``Conflict`` and change nothing."""
        head = batch.head
        for place, entry in enumerate(batch.entries, 1):
            if entry.seq != head + place:
                found = self._head(batch.key)[0]
                raise _conflict(batch.key, head + 1 if found != head else entry.seq, found)
        query, parameters = self._statement(batch)
        try:
            written = self._pool.count(query, parameters, batch.key.tenant) > 0
        except Taken:
            written = False
        except Lost:
            written = self._resolve(batch, query, parameters)
        if not written:
            raise _conflict(batch.key, head + 1, self._head(batch.key)[0])

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint, or ``None``."""
        place = None if seq is None else _within(seq)
        found = self._read(self._sql.read, key, seq=place)
        entries = [rows.entry_from(row) for row in found if row[0] != rows.RESULT]
        if not entries:
            return None
        results = tuple(rows.result_from(row) for row in found[len(entries) :])
        return Chain(_from_newest_snapshot(entries), results)

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """The seq of a checkpoint, or ``None``."""
        found = self._read(self._sql.locate, key, id=escape(checkpoint_id))
        return found[0][0] if found else None

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Entries newest first, without payloads. Nothing is held between two pages."""
        self._pool.check_open()
        return self._pages(key, limit, _FURTHEST if before is None else _within(before))

    def _pages(self, key: ThreadKey, limit: int | None, before: int) -> Iterator[Entry]:
        origin: int | None = None
        left = _FURTHEST if limit is None else limit
        while left > 0:
            size = min(left, _PAGE)
            page = {"origin": origin, "before": before, "limit": size}
            found = self._read(self._sql.history, key, **page)
            for row in found:
                yield rows.entry_from(row)
            if len(found) < size:
                return
            left -= size
            before, origin = found[-1][1], found[-1][16]

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The thread's runs, newest first."""
        found = self._read(self._sql.runs, key, limit=limit)
        return [rows.run_from(key, row) for row in found]

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """One run, or ``None``."""
        found = self._read(self._sql.run, key, run_id=escape(run_id))
        return rows.run_from(key, found[0]) if found else None

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """The failure of one run, or ``None``."""
        found = self._read(self._sql.failure, key, run_id=escape(run_id))
        return rows.failure_from(found[0]) if found else None

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
        if not is_plain(tenant):
            return []
        lowest, skipped = thread_bounds(after)
        query = self._sql.threads if status is None else self._sql.threads_by_status
        parameters: Parameters = {
            "tenant": tenant,
            "status": status,
            "from": lowest,
            "after": skipped,
            "limit": limit,
        }
        found = self._retry(query, parameters, tenant)
        return [rows.info_from(tenant, row) for row in found]

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """A stored manifest, or ``None``."""
        found = self._read(self._sql.manifest, key, fingerprint=escape(fingerprint))
        return found[0][0] if found else None

    def delete(self, key: ThreadKey) -> bool:
        """Remove the thread. What nobody can read any more goes in small batches."""
        was_there = self._head(key)[0] > 0 or bool(self.runs(key, limit=1))
        found = self._bury(key, was_there)
        while self._read(self._sql.sweep_entries, key, limit=_BATCH)[0][0] == _BATCH:
            pass
        self._read(self._sql.sweep_results, key)
        return found

    def _bury(self, key: ThreadKey, was_there: bool) -> bool:
        """Put the tombstone up; whether there was anything. Again, if somebody appended first."""
        in_doubt = False
        for number, _ in enumerate(self._pool.attempts()):
            parameters = rows.key_parameters(key, gap=1 if number < 3 else _BATCH)
            statements = [(self._sql.bury, parameters), (self._sql.sweep_records, parameters)]
            try:
                (tombstones,), (runs,) = self._pool.run_together(statements, key.tenant)
                return tombstones[0] + runs[0] > 0 or (in_doubt and was_there)
            except Taken:
                continue
            except Lost:
                in_doubt = True
        raise Unavailable(f"thread '{key.thread}' could not be deleted in time: try again")

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries by snapshots and drop what is below ``cut``, in small batches."""
        found, limit = self._head(key)
        if found != head:
            raise _conflict(key, head, found)
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
            raise _conflict(key, head, self._head(key)[0])
        if not passed:
            return 0
        origin, dropped = passed[0]
        return self._prune_on(key, origin, dropped, page)

    def _prune_on(self, key: ThreadKey, origin: int, dropped: int, page: Parameters) -> int:
        last = dropped
        while last == _BATCH:
            last = self._read(self._sql.prune_on, key, origin=origin, **page)[0][0]
            dropped += last
        return dropped

    def close(self) -> None:
        """Close every connection; every later call raises ``Unavailable``."""
        self._pool.close()

    def _statement(self, batch: Batch) -> tuple[bytes, Parameters | Numbered]:
        """The one statement that writes a batch: most are a step, and that one is the cheapest."""
        key, head, entries = batch.key, batch.head, batch.entries
        bare = head > 0 and not (batch.runs or batch.failure or batch.manifest)
        if bare and len(entries) == 1 and not batch.results:
            return self._sql.append, rows.entry_parameters(key, head, entries[0])
        parameters = rows.key_parameters(key, head=head, **rows.result_parameters(batch.results))
        if bare and not entries and batch.results:
            return self._sql.keep_results, parameters
        parameters |= rows.batch_parameters(entries, batch.runs, batch.failure, batch.manifest)
        return self._sql.commit, parameters

    def _resolve(self, batch: Batch, query: bytes, parameters: Parameters | Numbered) -> bool:
        """What became of a batch that got no answer."""

        def send() -> bool:
            try:
                return self._pool.count(query, parameters, batch.key.tenant) > 0
            except Taken:
                return False

        return resolve(self._pool.attempts(), is_there=lambda: self._is_there(batch), send=send)

    def _is_there(self, batch: Batch) -> bool:
        """Whether a batch is written, as far as reading can tell; results alone are sent again."""
        key, failure = batch.key, batch.failure
        if batch.entries:
            last = batch.entries[-1]
            parameters = rows.key_parameters(key, id=escape(last.id))
            return self._pool.run(self._sql.locate, parameters, key.tenant) == [(last.seq,)]
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


def _conflict(key: ThreadKey, expected: int, head: int) -> Conflict:
    return Conflict(tenant=key.tenant, thread=key.thread, expected=expected, head=head)


def _within(seq: int) -> int:
    return max(-_FURTHEST, min(seq, _FURTHEST))


def _from_newest_snapshot(entries: list[Entry]) -> tuple[Entry, ...]:
    """Drop what a snapshot repeats: pruning may have put one into the middle of a chain."""
    first = len(entries) - 1
    while first > 0 and entries[first].kind != SNAPSHOT:
        first -= 1
    return tuple(entries[first:])
