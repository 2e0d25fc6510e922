"""Connections to one file: a writer, under a lock, and a few readers.

Rules:

- A reader is borrowed for one read and given back. None is held while a caller iterates, so no
  call waits for a reader, and the write-ahead log can always be checkpointed.
- After a failed write or fsync the writer is poisoned: every later write fails until the store
  is reopened.
- No connection crosses a fork. A fork waits until no call is in progress, because SQLite has its
  own locks, which would stay taken forever in a child. The child leaves its parent's
  connections untouched, also unclosed, and opens its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock
from typing import Any, Literal

from milecastle.errors import Corrupted, StoreError, Unavailable
from milecastle.ports.store import WritesRefused
from milecastle.stores.sqlite.queries import SQL
from milecastle.support.forking import PATIENCE, watch_forks

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
)

_UNREADABLE = (sqlite3.OperationalError, UnicodeDecodeError)
"""What the driver itself raises for invalid text."""

DRIVER_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a call of the driver may raise; the second if even its message is invalid text."""


def _code(error: BaseException) -> int | None:
    extended = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


def is_busy(error: BaseException) -> bool:
    return _code(error) in _BUSY


def poisons(error: BaseException) -> bool:
    """True if the connection must no longer be used for writing.

    After a failed write or fsync the disk's state is unknown; trying again may succeed
    without anything having been saved.
    """
    return _code(error) == sqlite3.SQLITE_IOERR


def translate(error: Exception, path: str, timeout: float) -> StoreError:
    """The error to raise instead of a driver's.

    A constraint that fails here is damage: callers expecting a conflict check for it before.
    """
    if is_busy(error):
        return Unavailable(
            f"'{path}' was locked by another writer for more than {timeout:g} s; try again"
        )
    code = _code(error)
    if code in _DAMAGED or (code is None and isinstance(error, _UNREADABLE)):
        return Corrupted(f"the database is damaged ({error})", place=path)
    return Unavailable(f"'{path}' cannot be used: {error}")


_OFTEN = 8
_LEAST = 1 << 18
_MOST = 4_000_000
"""SQLite checkpoints the log at a thousand pages of four kilobytes."""


class Ahead:
    """Room in one write-ahead log before it is needed.

    A sync of a file that has grown writes the file's new length too, and takes about twice as long
    as one of a file that was only overwritten. SQLite overwrites its log from the start after each
    checkpoint; until then each commit makes it longer. So a writer makes it longer in larger
    pieces: it begins a transaction that is larger than the cache, so its pages go to the log, and
    rolls it back. The new pages belong to no transaction, and the next commits take their place.
    Room is made only after a commit has succeeded, failing to make it fails nothing, and the log is
    never made longer than it would become before SQLite's own checkpoint.

    ``until`` is how many commits may still be made before ``make_room`` is to be called.
    """

    def __init__(self, path: str) -> None:
        self._file = Path(f"{path}-wal")
        self._length = 0
        self.until = _OFTEN

    def make_room(self, cursor: sqlite3.Cursor) -> None:
        self.until = _OFTEN
        length = self._file.stat().st_size
        if self._length < length < _MOST:
            _lay_out(cursor, min(max(length, _LEAST), _MOST - length))
            length = self._file.stat().st_size
        self._length = length


def _lay_out(cursor: sqlite3.Cursor, size: int) -> None:
    cursor.execute("PRAGMA cache_size = 10")
    try:
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(SQL["lay_out"], (size,))
    finally:
        if cursor.connection.in_transaction:
            cursor.execute("ROLLBACK")
        cursor.execute("PRAGMA cache_size = -2000")


Synchronous = Literal["full", "normal"]

_IDLE_READERS = 4

_left_behind: list[object] = []


def connect(path: str, timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=timeout, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


class Connections:
    """One store's connections in one process; ``first`` becomes the writer."""

    def __init__(
        self, path: str, synchronous: Synchronous, timeout: float, first: sqlite3.Connection
    ) -> None:
        self.path = path
        self.timeout = timeout
        self._synchronous = synchronous
        self._ahead = Ahead(path) if synchronous == "full" else None
        self._closed = False
        self._begin(self._set_up(first))
        watch_forks(self)

    def _begin(self, writer: sqlite3.Cursor | None) -> None:
        self._poison: str | None = None
        self._writing = Lock()
        self._lending = Condition(Lock())
        self._lent = 0
        self._is_paused = False
        self._writer = writer
        self._ready = writer
        self._readers: list[sqlite3.Connection] = []

    def before_fork(self) -> None:
        self._is_paused = self._writing.acquire(timeout=PATIENCE)
        self._lending.acquire()
        self._lending.wait_for(lambda: self._lent == 0, PATIENCE)

    def after_fork(self, *, in_child: bool) -> None:
        """Let calls begin again; a child leaves every connection and lock untouched."""
        if in_child:
            _left_behind.append((self._writer, self._readers))
            self._begin(None)
            return
        self._lending.release()
        if self._is_paused:
            self._writing.release()

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the store '{self.path}' was closed")

    @contextmanager
    def writing(self) -> Generator[sqlite3.Cursor, None, None]:
        """An exclusive write transaction; committed with the block, or rolled back."""
        with self._writing:
            cursor = self._ready or self._open_writer()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except BaseException as error:
                self._roll_back(cursor, error)
                if isinstance(error, DRIVER_ERRORS):
                    raise translate(error, self.path, self.timeout) from error
                raise
            if self._ahead is not None:
                self._look_ahead(self._ahead, cursor)

    def write_alone(self, statement: str, row: Sequence[Any]) -> bool:
        """Run one statement as its own transaction; ``False`` if a constraint refused it."""
        with self._writing:
            cursor = self._ready or self._open_writer()
            try:
                cursor.execute(statement, row)
            except sqlite3.IntegrityError:
                return False
            except DRIVER_ERRORS as error:
                self._note(error)
                raise translate(error, self.path, self.timeout) from error
            if self._ahead is not None:
                self._look_ahead(self._ahead, cursor)
            return True

    @contextmanager
    def reading(self, *, whole: bool = True) -> Generator[sqlite3.Cursor, None, None]:
        """A transaction that sees one state of the file; if not ``whole``, one per statement.

        A statement read to its end is a transaction of its own.
        """
        connection = self._borrow()
        is_sound = False
        try:
            connection = connection or self._new_reader()
            cursor = connection.cursor()
            if whole:
                cursor.execute("BEGIN")
            yield cursor
            if whole:
                cursor.execute("COMMIT")
            cursor.close()
            is_sound = True
        except DRIVER_ERRORS as error:
            raise translate(error, self.path, self.timeout) from error
        finally:
            self._give_back(connection, is_sound)

    def _open_writer(self) -> sqlite3.Cursor:
        if self._closed or self._poison:
            self.check_open()
            raise WritesRefused(
                f"'{self.path}' accepts no more writes because an earlier write failed "
                f"({self._poison}): reopen the store and read what was saved"
            )
        if self._writer is None:
            try:
                self._writer = self._set_up(connect(self.path, self.timeout))
            except DRIVER_ERRORS as error:
                raise translate(error, self.path, self.timeout) from error
        self._ready = self._writer
        return self._writer

    def _set_up(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        cursor = connection.cursor()
        for pragma in _DURABLE if self._synchronous == "full" else _QUICK:
            cursor.execute(pragma)
        return cursor

    def close(self) -> None:
        with self._writing, self._lending:
            self._closed = True
            for connection in self._readers:
                connection.close()
            if self._writer is not None:
                self._writer.connection.close()
            self._readers, self._writer, self._ready = [], None, None

    def __del__(self) -> None:
        for connection in getattr(self, "_readers", ()):
            connection.close()
        writer: sqlite3.Cursor | None = getattr(self, "_writer", None)
        if writer is not None:
            writer.connection.close()

    def _borrow(self) -> sqlite3.Connection | None:
        with self._lending:
            self.check_open()
            self._lent += 1
            return self._readers.pop() if self._readers else None

    def _new_reader(self) -> sqlite3.Connection:
        connection = connect(self.path, self.timeout)
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _give_back(self, connection: sqlite3.Connection | None, is_sound: bool) -> None:
        with self._lending:
            self._lent -= 1
            self._lending.notify_all()
            if connection is None:
                return
            if is_sound and not self._closed and len(self._readers) < _IDLE_READERS:
                self._readers.append(connection)
            else:
                connection.close()

    def _look_ahead(self, ahead: Ahead, cursor: sqlite3.Cursor) -> None:
        ahead.until -= 1
        if ahead.until:
            return
        try:
            ahead.make_room(cursor)
        except (*DRIVER_ERRORS, OSError) as error:
            self._ahead = None
            if cursor.connection.in_transaction:
                self._poison_with(error)

    def _roll_back(self, cursor: sqlite3.Cursor, error: BaseException) -> None:
        self._note(error)
        try:
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
        except sqlite3.Error as second:
            self._poison_with(second)

    def _note(self, error: BaseException) -> None:
        if poisons(error):
            self._poison_with(error)

    def _poison_with(self, error: BaseException) -> None:
        self._poison, self._ready = self._poison or str(error), None


# A drive may hold writes in its own cache; `fullfsync` asks it not to,
# on the one system where that is a separate question.
_DURABLE = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
)
_QUICK = ("PRAGMA synchronous = NORMAL",)
