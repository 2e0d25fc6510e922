"""Room in the write-ahead log before it is needed.

A sync of a file that has grown writes the file's new length too, and takes about twice as long as
one of a file that was only overwritten. SQLite overwrites its log from the start once it was wound
up; until then each commit makes it longer. So a writer that goes on makes it longer in larger
pieces: it begins a transaction that is larger than the cache, so that its pages go to the log, and
rolls it back.

Rules:

- What is laid out belongs to no transaction. Nobody ever reads it, and the next commits take its
  place. The database file is not touched.
- Room is made only after a commit has succeeded. Failing to make it fails nothing.
- The log is never made longer than it becomes by itself before SQLite winds it up.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from milecastle.stores.sqlite.queries import SQL

__all__ = ["Ahead"]

_OFTEN = 8
_LEAST = 1 << 18
_MOST = 4_000_000
"""SQLite winds the log up at a thousand pages of four kilobytes."""


class Ahead:
    """Watches the length of one write-ahead log.

    ``until`` is how many commits may still be made before ``make_room`` is to be called.
    """

    def __init__(self, path: str) -> None:
        self._file = Path(f"{path}-wal")
        self._length = 0
        self.until = _OFTEN

    def make_room(self, cursor: sqlite3.Cursor) -> None:
        """Lay out as much again if the log grew since the last look."""
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
