"""A store in one SQLite file: durable, for many threads and processes of one machine.

Rules:

- A step is one INSERT, which carries its own fence: it is refused unless the head is there, is
  the entry's parent and has no successor. Everything else goes through ``writing``, which looks
  before it writes.
- Every row that is read is verified. Damage is ``Corrupted``, with its place.
- Each read sees one state of the file. A history is read page by page, and holds nothing between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from milecastle.errors import Conflict, InvalidRequest, StoreError
from milecastle.model.checkpoint import Entry
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.store import Batch, Chain
from milecastle.stores.sqlite.connections import Connections, Synchronous
from milecastle.stores.sqlite.log import Known, Log
from milecastle.stores.sqlite.migrating import prepare
from milecastle.stores.sqlite.queries import SQL
from milecastle.stores.sqlite.rows import ThreadRow
from milecastle.stores.sqlite.view import View
from milecastle.stores.sqlite.writing import (
    delete_thread,
    is_plain,
    last_of,
    prune_thread,
    step_row,
    write_batch,
)

__all__ = ["SqliteStore"]

_APPEND = SQL["append"]
_PAGE = 128
_REMEMBERED = 10_000
_NO_LIMIT = 2**62


class SqliteStore:
    """Keeps logs in an SQLite file, which is created if it is not there.

    ``synchronous="normal"`` lets the operating system write when it likes: what was committed
    survives the death of the process, and a power cut may take the last commits.
    ``timeout`` is how many seconds a writer waits for another one.
    """

    blocking = True
    rollup_after = 128
    writers = 1

    def __init__(
        self, path: str | Path, *, synchronous: Synchronous = "full", timeout: float = 30.0
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise InvalidRequest(f"synchronous is 'full' or 'normal', not '{synchronous}'")
        self.path = str(Path(path).absolute())
        first = prepare(self.path, timeout)
        self._connections = Connections(self.path, synchronous, timeout, first)
        self._known: dict[ThreadKey, Known] = {}

    def commit(self, batch: Batch) -> None:
        """Append the batch, or raise ``Conflict`` and change nothing."""
        known = self._known.get(batch.key)
        if known is not None and is_plain(batch):
            row = step_row(batch, known)
            if row is not None and self._connections.write_alone(_APPEND, row):
                known.last = last_of(batch.entries[0], row[1])
                return
        with self._connections.writing() as cursor:
            now = write_batch(View(cursor, self.path), batch, known)
        if now is not None:
            self._remember(batch.key, now)

    def commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        """Commit each batch as ``commit`` would, all in one transaction; the outcome of each."""
        learned: dict[ThreadKey, Known] = {}
        with self._connections.writing() as cursor:
            view = View(cursor, self.path)
            outcomes = [self._commit_one(view, batch, learned) for batch in batches]
        for key, known in learned.items():
            self._remember(key, known)
        return outcomes

    def _commit_one(
        self, view: View, batch: Batch, learned: dict[ThreadKey, Known]
    ) -> Conflict | None:
        """Write one of many; a batch that conflicts is refused before anything is written."""
        key = batch.key
        try:
            now = write_batch(view, batch, learned.get(key) or self._known.get(key))
        except Conflict as conflict:
            return conflict
        if now is not None:
            learned[key] = now
        return None

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint, or ``None``."""
        with self._connections.reading() as cursor:
            found = self._log(View(cursor, self.path), key)
            head = found[1].newest() if found else None
            if found is None or head is None:
                return None
            thread, log = found
            wanted = head.seq if seq is None else seq
            if not thread.first <= wanted <= head.seq:
                return None
            results = log.results(head.seq) if wanted == head.seq else []
            return Chain(tuple(log.chain(wanted)), tuple(results))

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """The seq of a checkpoint, or ``None``."""
        with self._connections.reading() as cursor:
            found = self._log(View(cursor, self.path), key)
            head = found[1].newest() if found else None
            return found[1].locate(checkpoint_id, head.seq) if found and head else None

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Entries newest first, without payloads."""
        self._connections.check_open()
        return self._history(key, _NO_LIMIT if limit is None else limit, before)

    def _history(self, key: ThreadKey, left: int, before: int | None) -> Iterator[Entry]:
        thread: ThreadRow | None = None
        top = 0
        while left > 0:
            with self._connections.reading() as cursor:
                found = self._log(View(cursor, self.path), key)
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
        """Entries oldest first, with payloads."""
        with self._connections.reading() as cursor:
            found = self._log(View(cursor, self.path), key)
            head = found[1].newest() if found else None
            if found is None or head is None:
                return []
            return found[1].forward(after, head.seq, _NO_LIMIT if limit is None else limit)

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The thread's runs, newest first."""
        with self._connections.reading() as cursor:
            view = View(cursor, self.path)
            thread = view.thread(key)
            return view.run_records(thread, limit) if thread else []

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """One run, or ``None``."""
        with self._connections.reading() as cursor:
            view = View(cursor, self.path)
            thread = view.thread(key)
            return view.run_record(thread, run_id) if thread else None

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """The failure of one run, or ``None``."""
        with self._connections.reading() as cursor:
            view = View(cursor, self.path)
            thread = view.thread(key)
            return view.failure(thread, run_id) if thread else None

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads by thread id."""
        count = _NO_LIMIT if limit is None else max(0, min(limit, _NO_LIMIT))
        with self._connections.reading() as cursor:
            view = View(cursor, self.path)
            wanted = None if status is None else _possible(status)
            found = view.threads(_possible(tenant), wanted, _least_above(after), count)
            return [_info(view, thread) for thread in found]

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """A stored manifest, or ``None``."""
        with self._connections.reading() as cursor:
            return View(cursor, self.path).manifest(key.tenant, fingerprint)

    def delete(self, key: ThreadKey, *, head: int | None = None) -> bool:
        """Remove the thread. A new one of this name has nothing to do with it."""
        with self._connections.writing() as cursor:
            return delete_thread(View(cursor, self.path), key, head)

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries by snapshots and drop what is below ``cut``."""
        with self._connections.writing() as cursor:
            view = View(cursor, self.path)
            return prune_thread(view, key, head=head, cut=cut, rewritten=rewritten)

    def close(self) -> None:
        """Close the file; every later call raises ``Unavailable``."""
        self._connections.close()

    def _log(self, view: View, key: ThreadKey) -> tuple[ThreadRow, Log] | None:
        """The thread and its log, remembering which thread this name means now."""
        thread = view.thread(key)
        if thread is None:
            return None
        known = self._known.get(key)
        if known is None or known.id != thread.id:
            known = Known(thread.id)
            self._remember(key, known)
        return thread, Log(view, thread, known)

    def _remember(self, key: ThreadKey, known: Known) -> None:
        """Keep what is known, unless something newer is: numbers of threads only grow."""
        older = self._known.get(key)
        if older is not None and older.id > known.id:
            return
        if len(self._known) >= _REMEMBERED:
            self._known = {}
        self._known[key] = known


def _possible(name: str) -> str:
    """The name, or one that nothing has in place of one that cannot be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return ""
    return name


def _least_above(after: str | None) -> str:
    """The least text above ``after``: a bound that the database can take."""
    if after is None:
        return ""
    for index, letter in enumerate(after):
        if "\ud800" <= letter <= "\udfff":
            return after[:index] + "\ue000"
    return after + "\0"


def _info(view: View, thread: ThreadRow) -> ThreadInfo:
    run = view.run_record(thread, thread.run_id or "")
    if run is None:
        raise view.damage("a run is missing", f"runs, thread '{thread.key}'")
    return ThreadInfo(
        key=thread.key,
        status=run.status,
        run_id=run.run_id,
        graph=run.graph,
        started_at=run.started_at,
        ended_at=run.ended_at,
    )
