"""The file as one transaction sees it, with every row verified.

Rules:

- Every row found is verified before it is used.
- A row counts as missing only if the rows on both sides of its place are intact: a damaged key
  would make a row disappear.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import msgspec.json

from milecastle.errors import Corrupted, InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.stores.sqlite.queries import SQL
from milecastle.stores.sqlite.rows import (
    SPAN,
    Damaged,
    Row,
    ThreadRow,
    checked,
    checksum,
    failure_of,
    is_sound,
    manifest_of,
    run_of,
    thread_of,
    unpack_id,
    write_text,
)
from milecastle.support.printable import quoted

T = TypeVar("T")

_DAMAGED = "a row does not match its checksum"
_THREAD_COLUMNS = 22

NO_LIMIT: Final = 2**62

Tell = Callable[[Corrupted, bool], None]
"""Gets the damage of a row of a list, and whether the row is listed all the same."""

DAMAGE = (Damaged, LookupError, TypeError, ValueError, msgspec.MsgspecError)
"""What reading a row with an impossible value raises."""

IMPOSSIBLE = (*DAMAGE, InvalidRequest)
"""The same, of a row that was not verified before."""

_UNREADABLE = (*DAMAGE, sqlite3.OperationalError)


class Lookup(msgspec.Struct):
    """A thread as one transaction finds it, by one statement; every row is verified.

    ``head`` and ``origin`` are its newest entry's and origin's rows, ``run`` the wanted
    run's number. ``number`` is for a new thread. ``seq`` and ``id`` are the head's.
    """

    thread: ThreadRow | None
    head: Row | None = None
    origin: Row | None = None
    run: int | None = None
    number: int = 0
    seq: int = 0
    id: str | None = None


class Transaction:
    def __init__(self, cursor: sqlite3.Cursor, path: str) -> None:
        self.cursor = cursor
        self.path = path

    def run(self, name: str, values: Sequence[Any]) -> int:
        return self.cursor.execute(SQL[name], values).rowcount

    def insert(self, name: str, row: Row) -> bool:
        try:
            self.cursor.execute(SQL[name], row)
        except sqlite3.IntegrityError:
            return False
        return True

    def run_each(self, name: str, rows: Sequence[Row]) -> None:
        self.cursor.executemany(SQL[name], rows)

    def one(self, name: str, values: Row) -> Row | None:
        row: Row | None = self.cursor.execute(SQL[name], values).fetchone()
        return row

    def each(self, name: str, values: Row) -> Iterator[Row]:
        return self.cursor.execute(SQL[name], values)

    def all(self, name: str, values: Row) -> list[Row]:
        return self.cursor.execute(SQL[name], values).fetchall()

    @contextmanager
    def reading(self, place: str) -> Generator[None, None, None]:
        try:
            yield
        except _UNREADABLE as error:
            self.refuse(error, place)

    def damage(self, what: str, place: str) -> Corrupted:
        return Corrupted(what, place=f"{self.path}, table {place}")

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        name = key.tenant, key.thread
        try:
            row = self.cursor.execute(SQL["thread"], name * 5).fetchone()
            if row[0] is not None:
                return thread_of(checked(row[:_THREAD_COLUMNS]), key)
            self.check_missing(row, key)
        except _UNREADABLE as error:
            self.refuse(error, f"threads, thread '{key}'")
        return None

    def present_thread(self, key: ThreadKey) -> ThreadRow | None:
        """``thread``, faster if there is one."""
        with self.reading(f"threads, thread '{key}'"):
            row = self.one("present_thread", (key.tenant, key.thread))
            if row is not None:
                return thread_of(checked(row), key)
        return self.thread(key)

    def look(self, key: ThreadKey, run_id: str = "") -> Lookup:
        """Everything a commit has to know about a thread; ``run_id`` is the run to be written."""
        name = key.tenant, key.thread
        values = run_id and write_text(run_id), *name * 5
        try:
            row = self.cursor.execute(SQL["look"], values).fetchone()
            if row[0] is None:
                self.check_missing(row, key)
                return Lookup(None, number=row[46] + 1)
            thread = thread_of(checked(row[:_THREAD_COLUMNS]), key)
            origin = None if row[54] is None else checked(row[54:58])
        except _UNREADABLE as error:
            self.refuse(error, f"threads, thread '{key}'")
        head = self.newest_of(thread, row[22:38], row[38:54])
        found = Lookup(thread, head, origin, row[58])
        if head is not None:
            found.seq, found.id = head[0] % SPAN, unpack_id(head[1])
        return found

    def newest_of(self, thread: ThreadRow, below: Row, above: Row) -> Row | None:
        """The head's row, from the last row up to the thread's end and the first above.

        If it has none, these are rows of other threads, which show none is missing.
        """
        for row in (below, above):
            if row[0] is not None and not is_sound(row):
                id, seq = divmod(row[0], SPAN)
                place = (
                    f", thread '{thread.key}', seq {seq}" if id == thread.id else f", id {row[0]}"
                )
                raise self.damage(_DAMAGED, f"entries{place}")
        if above[0] is not None and above[0] <= thread.last:
            place = f"entries, thread '{thread.key}', seq {above[0] % SPAN}"
            raise self.damage("entries are out of order", place)
        if below[0] is not None and below[0] > thread.origin:
            return below
        if thread.first > 1:
            place = f"entries, thread '{thread.key}', seq {thread.first}"
            raise self.damage("every entry is missing", place)
        return None

    def check_missing(self, row: Row, key: ThreadKey) -> None:
        for beside in (row[1:23], row[23:45]):
            if beside[0] is not None:
                checked(beside)
        if row[45] is not None:
            raise self.damage("a row is missing", f"threads, thread '{key}'")

    def refuse(self, error: Exception, place: str) -> NoReturn:
        if not isinstance(error, sqlite3.OperationalError):
            raise self.damage(_DAMAGED, place) from error
        if hasattr(error, "sqlite_errorcode"):
            raise error
        raise self.damage("a row holds text that is not UTF-8", place) from error

    def run_record(self, thread: ThreadRow, run_id: str) -> RunRecord | None:
        place = f"thread '{thread.key}', run {run_id}"
        make = partial(run_of, thread=thread)
        found = self._find("run", (thread.id, write_text(run_id)), place, make)
        if found is None and self._count("count_runs", thread) != thread.runs:
            raise self.damage("a row is missing", f"runs, {place}")
        return found

    def run_of_input(self, thread: ThreadRow, digest: str) -> RunRecord | None:
        place = f"runs, thread '{thread.key}'"
        with self.reading(place):
            row = self.one("run_of_input", (thread.id, write_text(digest)))
            if row is not None:
                run = run_of(checked(row), thread)
                if run.input_digest != digest:
                    raise Damaged
                return run
        if self._count("count_runs_by_input", thread) != thread.runs:
            raise self.damage("a row is missing", place)
        return None

    def failure(self, thread: ThreadRow, run_id: str) -> Failure | None:
        place = f"thread '{thread.key}', run {run_id}"
        found = self._find("failure", (thread.id, write_text(run_id)), place, failure_of)
        if found is None and self._count("count_failures", thread) != thread.failures:
            raise self.damage("a row is missing", f"failures, {place}")
        return found

    def manifest(self, tenant: str, fingerprint: str) -> bytes | None:
        with self.reading(f"manifests, tenant '{tenant}', fingerprint {fingerprint}"):
            key = tenant, write_text(fingerprint)
            row = self.one("manifest", key)
            if row is not None:
                return manifest_of(checked(row), key)
            for each in self.each("manifests", ()):
                checked(each)
        return None

    def _find(self, table: str, key: Row, place: str, make: Callable[[Row], T]) -> T | None:
        with self.reading(f"{table}s, {place}"):
            row = self.one(table, key)
            if row is not None:
                values = checked(row)
                if key not in (values[:2], values[1:3]):
                    raise Damaged
                return make(values)
            self.check_beside(table, key, key)
        return None

    def check_beside(self, table: str, low: Row, high: Row) -> None:
        self.check_first(f"{table}_below", low)
        self.check_first(f"{table}_above", high)

    def check_first(self, name: str, values: Row) -> Row | None:
        row = self.one(name, values)
        if row is not None:
            checked(row)
        return row

    def _count(self, name: str, thread: ThreadRow) -> int:
        row = self.one(name, (thread.id,))
        return row[0] if row else 0

    def run_records(self, thread: ThreadRow, limit: int | None) -> list[RunRecord]:
        wanted = thread.runs if limit is None else max(0, min(limit, thread.runs))
        place = f"runs, thread '{thread.key}'"
        with self.reading(place):
            rows = self.all("runs", (thread.id, wanted))
            found = [run_of(checked(row[1:]), thread) for row in rows]
        if [row[0] for row in rows] != [*range(thread.runs, thread.runs - wanted, -1)]:
            raise self.damage("a run is missing", place)
        return found

    def placed_threads(
        self, name: str, tenant: str, values: Row, limit: int, tell: Tell
    ) -> list[tuple[ThreadRow, int]]:
        try:
            with self.reading(f"threads, tenant '{tenant}'"):
                rows = self.all(name, (*values, limit))
                found = [(thread_of(checked(row[:-1])), int(row[-1])) for row in rows]
                if any(thread.key.tenant != tenant for thread, _ in found):
                    raise Damaged
        except Corrupted:
            placed = self._listable(name, tenant, values, tell)
            found = [(thread, row[-1]) for thread, row in placed if type(row[-1]) is int][:limit]
        return found

    def tagged_threads(
        self, tenant: str, tag: str, start: str, limit: int, tell: Tell
    ) -> list[ThreadRow]:
        """The tenant's threads with a tag, from ``start`` on.

        A damaged row does not prevent others from being listed; ``tell`` gets the error.
        """
        place = f"tags, tenant '{tenant}', tag {quoted(tag)}"
        values = tenant, tag, start
        found, damaged = self._tagged(values, limit, tell)
        if damaged:  # a page that is short would be taken for the last one
            found, damaged = self._tagged(values, NO_LIMIT, tell)
        for thread in damaged:
            tell(self.damage(_DAMAGED, f"{place}, thread '{thread.key}'"), False)
        found = found[:limit]
        if len(found) != limit:
            last = found[-1].key.thread if found else start
            try:
                with self.reading(place):
                    self.check_beside("tag", values, (tenant, tag, last))
            except Corrupted as error:  # it may have been one of them
                tell(error, False)
        return found

    def _tagged(
        self, values: tuple[str, str, str], limit: int, tell: Tell
    ) -> tuple[list[ThreadRow], list[ThreadRow]]:
        tenant, tag, _ = values
        found: tuple[list[ThreadRow], list[ThreadRow]] = [], []
        for thread, sum in self.placed_threads("tagged_threads", tenant, values, limit, tell):
            found[sum != checksum(tenant, tag, thread.key.thread, thread.id)].append(thread)
        return found

    def tags_of(self, tenant: str, threads: Sequence[str]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        names = msgspec.json.encode(list(dict.fromkeys(threads))).decode()
        with self.reading(f"tags, tenant '{tenant}'"):
            rows = self.all("tags_of", (names, tenant))
        for thread, *row in rows:
            with self.reading(f"tags, tenant '{tenant}', thread {quoted(thread)}"):
                values = checked(tuple(row))
                if (values[0], values[2]) != (tenant, thread):
                    raise Damaged
            found[thread] = (*found.get(thread, ()), values[1])
        return found

    def placed_runs(
        self, name: str, tenant: str, values: Row, limit: int, tell: Tell
    ) -> list[tuple[RunRecord, tuple[int, int, int]]]:
        place = f"runs, tenant '{tenant}'"
        try:
            with self.reading(place):
                return [_placed_run(row, tenant) for row in self.all(name, (*values, limit))]
        except Corrupted:
            found: list[tuple[RunRecord, tuple[int, int, int]]] = []
            for row in self._leniently(name, values):
                try:
                    found.append(_placed_run(row, tenant))
                except IMPOSSIBLE:
                    tell(
                        self.damage(_DAMAGED, f"{place}, run {quoted(row[_THREAD_COLUMNS + 1])}"),
                        False,
                    )
            return found[:limit]

    def threads(
        self, tenant: str, status: str | None, start: str, limit: int, tell: Tell
    ) -> list[ThreadRow]:
        """The tenant's threads with a line, from ``start`` on.

        A damaged row does not prevent others from being listed. It is listed too, as it is, if it
        can be a thread's: a caller gets the error when using the thread. ``tell`` gets the error,
        and whether the row is listed.
        """
        name = "threads" if status is None else "threads_of_status"
        values = (tenant, start) if status is None else (tenant, status, start)
        found: list[ThreadRow]
        try:
            with self.reading(f"threads, tenant '{tenant}'"):
                found = [thread_of(checked(row)) for row in self.all(name, (*values, limit))]
                names = [thread.key.thread for thread in found if thread.key.tenant == tenant]
                if len(names) != len(found) or names != sorted(set(names)):
                    raise Damaged
                if len(found) != limit:
                    last = found[-1].key.thread if found else start
                    self.check_beside("thread", (tenant, start), (tenant, last))
        except Corrupted as error:
            told: list[Corrupted] = []

            def note(damage: Corrupted, listed: bool) -> None:
                told.append(damage)
                tell(damage, listed)

            found, lowest = [], start
            for thread, _ in self._listable(name, tenant, values, note):
                if thread.key.thread >= lowest:  # a reader pages by the last name
                    found.append(thread)
                    lowest = f"{thread.key.thread}\0"
            if not told:  # the damage is in a row beside them, which may have been one of them
                tell(error, False)
            found = found[:limit]
        return found

    def _listable(
        self, name: str, tenant: str, values: Row, tell: Tell
    ) -> list[tuple[ThreadRow, Row]]:
        found: list[tuple[ThreadRow, Row]] = []
        for row in self._leniently(name, values):
            columns = row[:_THREAD_COLUMNS]
            try:
                thread = thread_of(columns[:-1])
                msgspec.convert(msgspec.to_builtins(thread.info), ThreadInfo)
                listed = thread.key.tenant == tenant
            except IMPOSSIBLE:
                listed = False
            else:
                if listed:
                    found.append((thread, row))
            try:
                checked(columns)
            except DAMAGE:
                place = f"threads, row {row[0]:d}, thread {quoted(row[2])}"
                tell(self.damage(_DAMAGED, place), listed)
        return found

    def _leniently(self, name: str, values: Row) -> list[Row]:
        connection = self.cursor.connection
        strict = connection.text_factory
        connection.text_factory = _text
        try:
            return self.all(name, (*values, -1))
        finally:
            connection.text_factory = strict


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _placed_run(row: Row, tenant: str) -> tuple[RunRecord, tuple[int, int, int]]:
    thread = thread_of(checked(row[:_THREAD_COLUMNS]))
    if thread.key.tenant != tenant:
        raise Damaged
    run = run_of(checked(row[_THREAD_COLUMNS:-2]), thread)
    return run, (int(row[-2]), thread.id, int(row[-1]))
