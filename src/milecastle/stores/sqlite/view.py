"""A view: the file as one transaction sees it, with every row verified.

Rules:

- What is found is verified before it is used.
- That something is *not* there is believed only if the rows on both sides of its place are
  sound: a damaged key would make a row vanish.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from milecastle.errors import Corrupted
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.stores.sqlite.queries import SQL
from milecastle.stores.sqlite.rows import (
    Damaged,
    Row,
    ThreadRow,
    checked,
    failure_of,
    manifest_of,
    run_of,
    thread_of,
    write_text,
)

__all__ = ["DAMAGE", "View"]

T = TypeVar("T")

DAMAGE = (Damaged, LookupError, TypeError, ValueError, msgspec.MsgspecError)
"""What is raised when a row is read that holds what no row holds."""


class View:
    """The file through one cursor."""

    def __init__(self, cursor: sqlite3.Cursor, path: str) -> None:
        self.cursor = cursor
        self.path = path

    def run(self, name: str, values: Sequence[Any]) -> int:
        """Run a statement that changes something; how many rows it changed."""
        return self.cursor.execute(SQL[name], values).rowcount

    def insert(self, name: str, row: Row) -> bool:
        """Insert a row; ``False`` if a constraint refused it, and nothing has changed."""
        try:
            self.cursor.execute(SQL[name], row)
        except sqlite3.IntegrityError:
            return False
        return True

    def run_each(self, name: str, rows: Sequence[Row]) -> None:
        """Run a statement that changes something once for each row."""
        self.cursor.executemany(SQL[name], rows)

    def one(self, name: str, values: Row) -> Row | None:
        """The first row of a query."""
        row: Row | None = self.cursor.execute(SQL[name], values).fetchone()
        return row

    def each(self, name: str, values: Row) -> Iterator[Row]:
        """The rows of a query, one by one."""
        return self.cursor.execute(SQL[name], values)

    def all(self, name: str, values: Row) -> list[Row]:
        """Every row of a query."""
        return self.cursor.execute(SQL[name], values).fetchall()

    @contextmanager
    def reading(self, place: str) -> Generator[None, None, None]:
        """Whatever turns out to be damaged in this block was damaged at this place."""
        try:
            yield
        except DAMAGE as error:
            raise self.damage("a row does not match its checksum", place) from error
        except sqlite3.OperationalError as error:
            if hasattr(error, "sqlite_errorcode"):
                raise
            raise self.damage("a row holds text that is not UTF-8", place) from error

    def damage(self, what: str, place: str) -> Corrupted:
        """The error that says what is damaged, and where."""
        return Corrupted(what, place=f"{self.path}, table {place}")

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        """A thread in the index. Both ways to it must lead nowhere if there is none."""
        name, place = (key.tenant, key.thread), f"thread '{key}'"
        found = self._find("thread", name, place, thread_of)
        if found is None and self.one("thread_by_status", name):
            raise self.damage("a row is missing", f"threads, {place}")
        return found

    def run_record(self, thread: ThreadRow, run_id: str) -> RunRecord | None:
        """A run of a thread."""
        place = f"thread '{thread.key}', run {run_id}"
        make = partial(run_of, thread=thread)
        found = self._find("run", (thread.id, write_text(run_id)), place, make)
        if found is None and self._count("count_runs", thread) != thread.runs:
            raise self.damage("a row is missing", f"runs, {place}")
        return found

    def failure(self, thread: ThreadRow, run_id: str) -> Failure | None:
        """The failure of a run of a thread."""
        place = f"thread '{thread.key}', run {run_id}"
        found = self._find("failure", (thread.id, write_text(run_id)), place, failure_of)
        if found is None and self._count("count_failures", thread) != thread.failures:
            raise self.damage("a row is missing", f"failures, {place}")
        return found

    def manifest(self, tenant: str, fingerprint: str) -> bytes | None:
        """A manifest. Every entry has one: if it is missing, all of them are looked at."""
        with self.reading(f"manifests, tenant '{tenant}', fingerprint {fingerprint}"):
            key = tenant, write_text(fingerprint)
            row = self.one("manifest", key)
            if row is not None:
                return manifest_of(checked(row), key)
            for each in self.each("manifests", ()):
                checked(each)
        return None

    def _find(self, table: str, key: Row, place: str, make: Callable[[Row], T]) -> T | None:
        """What the row with this key holds, or ``None`` if there is no such row indeed."""
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
        """Verify the row below ``low`` and the row above ``high``."""
        self.check_first(f"{table}_below", low)
        self.check_first(f"{table}_above", high)

    def check_first(self, name: str, values: Row) -> Row | None:
        """The first row of a query, verified."""
        row = self.one(name, values)
        if row is not None:
            checked(row)
        return row

    def _count(self, name: str, thread: ThreadRow) -> int:
        row = self.one(name, (thread.id,))
        return row[0] if row else 0

    def newest_run(self, thread: ThreadRow) -> RunRecord | None:
        """The run of a thread that was the last to start."""
        with self.reading(f"runs, thread '{thread.key}'"):
            row = self.one("runs", (thread.id, 1))
            return run_of(checked(row), thread) if row else None

    def run_records(self, thread: ThreadRow, limit: int | None) -> list[RunRecord]:
        """The runs of a thread, newest first; none is missing."""
        wanted = thread.runs if limit is None else max(0, min(limit, thread.runs))
        place = f"runs, thread '{thread.key}'"
        with self.reading(place):
            rows = self.all("runs", (thread.id, wanted))
            found = [run_of(checked(row), thread) for row in rows]
        order = [(run.started_at, run.run_id) for run in found]
        is_newest = not order or order[0] == (thread.started_at, thread.run_id)
        if len(found) != wanted or not is_newest or order != sorted(set(order), reverse=True):
            raise self.damage("a run is missing", place)
        return found

    def threads(self, tenant: str, status: str | None, start: str, limit: int) -> list[ThreadRow]:
        """The tenant's threads that have a run, from ``start`` on."""
        with self.reading(f"threads, tenant '{tenant}'"):
            if status is None:
                rows = self.all("threads", (tenant, start, limit))
            else:
                rows = self.all("threads_of_status", (tenant, status, start, limit))
            found = [thread_of(checked(row)) for row in rows]
            names = [thread.key.thread for thread in found if thread.key.tenant == tenant]
            if len(names) != len(found) or names != sorted(set(names)):
                raise Damaged
            if len(found) != limit:
                last = found[-1].key.thread if found else start
                self.check_beside("thread", (tenant, start), (tenant, last))
        return found
