"""What SQLite's errors mean, said in the words of this library."""

from __future__ import annotations

import sqlite3

from milecastle.errors import Corrupted, StoreError, Unavailable

__all__ = ["DRIVER_ERRORS", "is_busy", "poisons", "translate"]

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
"""What the driver raises on its own account when text is not text."""

DRIVER_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a call of the driver may raise; the second when not even its message is text."""


def _code(error: BaseException) -> int | None:
    """The primary result code; ``None`` for what the driver raises on its own account."""
    extended = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether somebody else held a lock for too long."""
    return _code(error) in _BUSY


def poisons(error: BaseException) -> bool:
    """Whether the connection cannot be trusted to write any more.

    After a failed write or fsync nobody knows what the disk holds; trying again may succeed
    without anything having been saved.
    """
    return _code(error) == sqlite3.SQLITE_IOERR


def translate(error: Exception, path: str, timeout: float) -> StoreError:
    """The error to raise instead of one of ``DRIVER_ERRORS``.

    A constraint that fails here is damage: who may meet a conflict looks for it before.
    """
    if is_busy(error):
        return Unavailable(
            f"'{path}' was locked by another writer for more than {timeout:g} s; try again"
        )
    code = _code(error)
    if code in _DAMAGED or (code is None and isinstance(error, _UNREADABLE)):
        return Corrupted(f"the database is damaged ({error})", place=path)
    return Unavailable(f"'{path}' cannot be used: {error}")
