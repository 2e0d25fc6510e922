"""A thread's log: its head, its chains, its history, and the results that came with the head.

Results are a separate log, numbered from 1, and all belong to one step: adding results removes
an ended step's. So the newest one shows whether they are current.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import msgspec

from milecastle.errors import Corrupted
from milecastle.model.checkpoint import (
    DELTA,
    HOLDING,
    ROLLUP,
    SNAPSHOT,
    Entry,
    TaskResult,
    item_bounds,
)
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Chain, Opened
from milecastle.stores.sqlite.queries import SQL
from milecastle.stores.sqlite.rows import (
    SPAN,
    Damaged,
    Row,
    RunAndGraph,
    ThreadRow,
    checked,
    entry_of,
    is_sound,
    pack_id,
    read_text,
    result_of,
    run_of,
    thread_of,
    write_text,
)
from milecastle.stores.sqlite.transaction import DAMAGE, Transaction

_ID, _CHECKPOINT, _ORIGIN, KIND, _BASE, ROLL, _PRIOR = 0, 1, 7, 9, 10, 11, 12
_LOOK = 16

LastEntry = tuple[str, str | bytes, int]
"""An entry that was the head: its id, the same packed, and the base of a rollup on top of it."""


class Known(msgspec.Struct):
    """A thread as remembered between two calls; none of it ever changes on disk.

    ``has_results`` says there may be results to remove; a wrong value is harmless.
    ``last`` is the newest entry this store wrote; others may have written since.
    """

    id: int
    origins: dict[int, RunAndGraph] = {}
    numbers: dict[RunAndGraph, int] = {}
    has_results: bool = False
    last: LastEntry | None = None

    def with_last(self, last: LastEntry) -> Known:
        return Known(self.id, self.origins, self.numbers, self.has_results, last)

    def note(self, number: int, origin: RunAndGraph) -> None:
        self.origins[number] = origin
        self.numbers[origin] = number


def glance(
    transaction: Transaction, key: ThreadKey, known_of: Callable[[ThreadRow], Known]
) -> tuple[Opened | None] | None:
    """The head's chain and its run's record, if two statements are enough; else ``None``.

    They are if the chain has no rollup, the thread has no results and nothing is damaged. Entries
    never change: that the second statement may see a later state makes no difference, unless the
    thread was pruned or deleted in between.
    """
    try:
        row = transaction.cursor.execute(SQL["glance"], (key.tenant, key.thread) * 5).fetchone()
        if row[0] is None:
            transaction.check_missing(row, key)
            return (None,)
        thread = thread_of(checked(row[:22]), key)
        head = transaction.newest_of(thread, row[22:38], row[38:54])
        for result in (row[73:79], row[79:85]):
            if result[0] is not None:
                checked(result)
        has_results = row[73] is not None and row[73] > thread.origin
        if head is None:
            return (None,)
        if has_results or head[KIND] == ROLLUP or head[_BASE] != head[ROLL]:
            return None
        known = known_of(thread)
        if head[_ORIGIN] not in known.origins:
            _, run_id, fingerprint = checked(row[54:58])
            known.note(head[_ORIGIN], (read_text(run_id), read_text(fingerprint)))
        record = None if row[58] is None else run_of(checked(row[58:73]), thread)
        entries = ThreadLog(transaction, thread, known).short_chain(head)
    except (*DAMAGE, Corrupted, sqlite3.OperationalError):
        return None  # a transaction says where the damage is
    return None if entries is None else (Opened(Chain(entries), record),)


class ThreadLog:
    def __init__(self, transaction: Transaction, thread: ThreadRow, known: Known) -> None:
        self._transaction = transaction
        self._thread = thread
        self._known = known

    def place(self, seq: int) -> str:
        return f"entries, thread '{self._thread.key}', seq {seq}"

    def newest(self) -> Entry | None:
        thread = self._thread
        below = self._neighbour("bare_entries_down", (thread.last, 0, 1))
        head = below if below and below[_ID] > thread.origin else None
        above = self._neighbour("bare_entries_up", (head[_ID] if head else thread.origin, 1))
        if above and above[_ID] <= thread.last:
            raise self._transaction.damage(
                "entries are out of order", self.place(above[_ID] % SPAN)
            )
        if head is None and thread.first > 1:
            raise self._transaction.damage("every entry is missing", self.place(thread.first))
        return self._entry(head) if head else None

    def entry(self, seq: int) -> Entry:
        return self._entry(self._row(seq))

    def short_chain(self, head: Row) -> tuple[Entry, ...] | None:
        values = head[_ID], self._thread.origin + head[ROLL] - 1
        rows = self._transaction.all("entries_down", values)
        if not rows or rows[0][: len(head)] != head:
            return None
        for at, row in enumerate(rows):
            if row[_ID] != head[_ID] - at or not is_sound(row):
                return None
            if row[KIND] == SNAPSHOT:
                return tuple([self._entry(one) for one in rows[at::-1]])
        return None

    def chain(self, seq: int) -> list[Entry]:
        row = self._row(seq)
        rows = [row]
        if row[KIND] == DELTA:
            rows += self._tail(row)
            if rows[-1][KIND] == DELTA:
                rows.append(self._row(row[ROLL], below=seq))
        while rows[-1][KIND] != SNAPSHOT:
            at, prior = rows[-1][_ID] % SPAN, rows[-1][_PRIOR]
            if prior is None:
                raise self._transaction.damage(
                    "a chain has no snapshot to start from", self.place(at)
                )
            rows.append(self._row(prior, below=at))
        return [self._entry(row) for row in reversed(rows)]

    def results(self, head: int) -> list[TaskResult]:
        thread, newest = self._thread, self._newest_result(head)
        self._known.has_results = newest is not None
        if newest is None or not self._is_held(newest[1], head):
            return []
        rows: list[Row] = []
        with self._transaction.reading(f"results, thread '{thread.key}', seq {head}"):
            # The row after the last is checked too: a damaged number would put one there.
            for row in self._transaction.each("results", (thread.origin,)):
                checked(row)
                if row[_ID] > thread.last:
                    break
                rows.append(row)
                if row[_ID] != thread.origin + len(rows):
                    raise Damaged
        return list({result.task: result for result in map(result_of, rows)}.values())

    def count_results(self, head: int, task: str) -> int:
        thread, newest = self._thread, self._newest_result(head)
        if newest is None or not self._is_held(newest[1], head):
            return 0
        names = map(write_text, (task, *item_bounds(task)))
        found = self._transaction.one("count_results", (thread.origin, newest[_ID], *names))
        return int(found[0]) if found else 0

    def drop_dead_results(self, head: int) -> int:
        thread, newest = self._thread, self._newest_result(head)
        if newest is None:
            return 0
        if self._is_held(newest[1], head):
            return int(newest[_ID] - thread.origin)
        self._transaction.run("drop_results", (thread.origin, thread.last))
        return 0

    def _newest_result(self, head: int) -> Row | None:
        thread = self._thread
        with self._transaction.reading(f"results, thread '{thread.key}', seq {head}"):
            self._transaction.check_first("result_above", (thread.last,))
            newest = self._transaction.check_first("result_below", (thread.last + 1,))
        return newest if newest and newest[_ID] > thread.origin else None

    def page(self, top: int, limit: int) -> list[Entry]:
        """At most ``limit`` entries without payloads, from ``top`` down; none is missing."""
        thread = self._thread
        low = thread.origin + thread.first
        with self._transaction.reading(self.place(top)):
            rows = self._transaction.all("bare_entries_down", (thread.origin + top, low, limit))
        for seq, row in zip(range(top, 0, -1), rows, strict=False):
            self._check(row, seq)
        if len(rows) < min(limit, top - thread.first + 1):
            raise self._transaction.damage("an entry is missing", self.place(top - len(rows)))
        return [self._entry(row) for row in rows]

    def forward(self, after: int, head: int, limit: int) -> list[Entry]:
        """Entries with payloads above ``after``, oldest first; none is missing."""
        origin, low = self._thread.origin, max(after + 1, self._thread.first)
        wanted = range(low, min(head, low + limit - 1) + 1)
        if not wanted:
            return []
        with self._transaction.reading(self.place(low)):
            rows = self._transaction.all("entries_up", (origin + low - 1, origin + wanted[-1]))
        for seq, row in zip(wanted, rows, strict=False):
            self._check(row, seq)
        if len(rows) < len(wanted):
            raise self._transaction.damage("an entry is missing", self.place(low + len(rows)))
        return [self._entry(row) for row in rows]

    def locate(self, checkpoint_id: str, head: int) -> int | None:
        wanted = pack_id(checkpoint_id)
        low, high = self._thread.first, head
        while low <= high:
            middle = (low + high) // 2
            found = self._bare(middle)[_CHECKPOINT]
            if found == wanted:
                return middle
            if not isinstance(found, bytes) or not isinstance(wanted, bytes):
                break
            low, high = (middle + 1, high) if found < wanted else (low, middle - 1)
        origin = self._thread.origin
        row = self._transaction.one("search_checkpoint", (origin + 1, origin + head, wanted))
        return self.entry(row[0] - origin).seq if row else None

    def _tail(self, row: Row) -> list[Row]:
        found: list[Row] = []
        seq, roll_seq = row[_ID] % SPAN - 1, row[ROLL]
        origin = self._thread.origin
        with self._transaction.reading(self.place(seq)):
            for each in self._transaction.each("entries_down", (origin + seq, origin + roll_seq)):
                self._check(each, seq)
                found.append(each)
                seq -= 1
                if each[KIND] == SNAPSHOT:
                    return found
        if seq != roll_seq:
            raise self._transaction.damage("an entry is missing", self.place(seq))
        return found

    def _row(self, seq: int, below: int | None = None) -> Row:
        with self._transaction.reading(self.place(seq)):
            row = self._transaction.one("entry", (self._thread.origin + seq,))
        if row is None or (below is not None and seq >= below):
            raise self._transaction.damage("an entry is missing", self.place(seq))
        self._check(row, seq)
        return row

    def _bare(self, seq: int) -> Row:
        id = self._thread.origin + seq
        row = self._neighbour("bare_entries_down", (id, id, 1))
        if row is None:
            raise self._transaction.damage("an entry is missing", self.place(seq))
        return row

    def _is_held(self, seq: int, head: int) -> bool:
        """True if the step at ``seq`` is still the current one at the head.

        Pruning keeps the rows this depends on: see ``drop_dead_results``.
        """
        low, top = max(seq + 1, self._thread.first), head
        while top >= low:
            page = self.page(top, min(top - low + 1, _LOOK))
            if any(entry.source not in HOLDING for entry in page):
                return False
            top -= len(page)
        return True

    def _neighbour(self, name: str, values: Row) -> Row | None:
        with self._transaction.reading(f"entries, beside thread '{self._thread.key}'"):
            row = self._transaction.one(name, values)
            if row and not is_sound(row):
                thread, seq = divmod(row[_ID], SPAN)
                place = self.place(seq) if thread == self._thread.id else f"entries, id {row[_ID]}"
                raise self._transaction.damage("a row does not match its checksum", place)
        return row

    def _check(self, row: Row, seq: int) -> None:
        if row[_ID] != self._thread.origin + seq:
            raise self._transaction.damage("an entry is missing", self.place(seq))
        if not is_sound(row):
            raise self._transaction.damage("a row does not match its checksum", self.place(seq))

    def _entry(self, row: Row) -> Entry:
        try:
            return entry_of(row, self._origin(row[_ORIGIN]))
        except DAMAGE as error:
            place = self.place(row[_ID] % SPAN)
            raise self._transaction.damage("the run of an entry is damaged", place) from error

    def _origin(self, number: int) -> RunAndGraph:
        origin = self._known.origins.get(number)
        if origin is None:
            row = self._transaction.one("origin", (self._thread.origin + number,))
            if row is None:
                raise Damaged
            values = checked(row)
            origin = read_text(values[1]), read_text(values[2])
            self._known.note(number, origin)
        return origin
