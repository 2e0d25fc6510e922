"""Connections to one file: one that writes, under a lock, and a few that read.

Rules:

- A reader is borrowed for one read and given back. None is held while a caller iterates, so that
  nobody waits for a reader, and the write-ahead log can always be wound up.
- After a failed write or fsync the writer is poisoned: every later write fails until the store
  is opened anew.
- No connection crosses a fork. A fork waits until no call is under way, because SQLite has locks
  of its own that a child would find taken for ever. The child leaves the connections of its
  parent untouched, also unclosed, and opens its own.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Any, Literal
from weakref import WeakSet

from milecastle.errors import Unavailable
from milecastle.stores.sqlite.ahead import Ahead
from milecastle.stores.sqlite.trouble import DRIVER_ERRORS, poisons, translate

__all__ = ["Connections", "Synchronous", "connect"]

Synchronous = Literal["full", "normal"]

_IDLE_READERS = 4
_PATIENCE = 10.0
"""How many seconds a fork waits for a call that is under way."""

_pools: WeakSet[Connections] = WeakSet()
_left_behind: list[object] = []


def connect(path: str, timeout: float) -> sqlite3.Connection:
    """A connection that begins no transaction by itself and looks twice at what it reads."""
    connection = sqlite3.connect(
        path, timeout=timeout, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


class Connections:
    """The connections of one store in one process; ``first`` becomes the one that writes."""

    def __init__(
        self, path: str, synchronous: Synchronous, timeout: float, first: sqlite3.Connection
    ) -> None:
        self.path = path
        self.timeout = timeout
        self._synchronous = synchronous
        self._ahead = Ahead(path) if synchronous == "full" else None
        self._closed = False
        self._begin(self._set_up(first))
        _pools.add(self)

    def _begin(self, writer: sqlite3.Cursor | None) -> None:
        self._poison: str | None = None
        self._writing = Lock()
        self._lending = Condition(Lock())
        self._lent = 0
        self._is_paused = False
        self._writer = writer
        self._ready = writer
        self._readers: list[sqlite3.Connection] = []

    def pause(self) -> None:
        """Wait until no call is under way, and let none begin."""
        self._is_paused = self._writing.acquire(timeout=_PATIENCE)
        self._lending.acquire()
        self._lending.wait_for(lambda: self._lent == 0, _PATIENCE)

    def go_on(self) -> None:
        """Let calls begin again."""
        self._lending.release()
        if self._is_paused:
            self._writing.release()

    def leave_behind(self) -> None:
        """Forget every connection and lock without touching it: this is a child after a fork."""
        _left_behind.append((self._writer, self._readers))
        self._begin(None)

    def check_open(self) -> None:
        """Raise ``Unavailable`` once the store was closed."""
        if self._closed:
            raise Unavailable(f"the store '{self.path}' was closed")

    @contextmanager
    def writing(self) -> Generator[sqlite3.Cursor, None, None]:
        """A transaction that nobody else writes beside; it ends with the block, or not at all."""
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
        """Run one statement as a transaction of its own; ``False`` if a constraint refused it."""
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
    def reading(self) -> Generator[sqlite3.Cursor, None, None]:
        """A transaction that sees one state of the file."""
        connection = self._borrow()
        is_sound = False
        try:
            connection = connection or self._new_reader()
            cursor = connection.cursor()
            cursor.execute("BEGIN")
            yield cursor
            cursor.execute("COMMIT")
            is_sound = True
        except DRIVER_ERRORS as error:
            raise translate(error, self.path, self.timeout) from error
        finally:
            self._give_back(connection, is_sound)

    def _open_writer(self) -> sqlite3.Cursor:
        """The cursor of the connection that writes, if it may; to be called under its lock."""
        if self._closed or self._poison:
            self.check_open()
            raise Unavailable(
                f"'{self.path}' is not written to any more, because writing failed before "
                f"({self._poison}): open the store anew and read what was kept"
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
        """Close every connection; those that are lent are closed when they come back."""
        with self._writing, self._lending:
            self._closed = True
            for connection in self._readers:
                connection.close()
            if self._writer is not None:
                self._writer.connection.close()
            self._readers, self._writer, self._ready = [], None, None

    def __del__(self) -> None:
        """Close what nobody closed: newer Pythons warn about connections that are left open."""
        for connection in getattr(self, "_readers", ()):
            connection.close()
        writer: sqlite3.Cursor | None = getattr(self, "_writer", None)
        if writer is not None:
            writer.connection.close()

    def _borrow(self) -> sqlite3.Connection | None:
        """An idle reader, if there is one. Whatever comes of it, it must be given back."""
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
        """Once in a while, make room for the next commits. What was committed stays so."""
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


# A drive may keep what it was told to write in a cache of its own; `fullfsync` asks it not to,
# on the one system where that is a separate question.
_DURABLE = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
)
_QUICK = ("PRAGMA synchronous = NORMAL",)


class _Forks:
    """Keeps calls and forks apart. One fork at a time: what is paused is paused for that one."""

    def __init__(self) -> None:
        self._one = Lock()
        self._paused: list[Connections] = []

    def before(self) -> None:
        self._one.acquire()
        self._paused = list(_pools)
        for pool in self._paused:
            pool.pause()

    def after_in_parent(self) -> None:
        for pool in self._paused:
            pool.go_on()
        self._paused = []
        self._one.release()

    def after_in_child(self) -> None:
        for pool in self._paused:
            pool.leave_behind()
        self._paused = []
        self._one = Lock()


if hasattr(os, "register_at_fork"):
    _forks = _Forks()
    os.register_at_fork(
        before=_forks.before,
        after_in_parent=_forks.after_in_parent,
        after_in_child=_forks.after_in_child,
    )
