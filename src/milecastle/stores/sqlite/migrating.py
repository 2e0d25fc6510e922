"""Opening a file: it is ours, it is not newer than we are, and its tables are there.

Rules:

- Nothing is changed in a file that is not ours.
- A migration runs in a transaction that excludes every other writer, and looks at the version
  again inside of it, so that any number of processes may open a file at once.
- The tables are those that the migrations make, to the letter: a damaged definition would make
  rows unreadable, or invisible. More tables and indexes may stand beside them.
- The format version is the number of the last migration; each writes its own number.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from functools import cache
from pathlib import Path

from milecastle.errors import Corrupted, FormatTooNew, InvalidRequest
from milecastle.stores.sqlite.connections import connect
from milecastle.stores.sqlite.queries import MIGRATIONS, statements
from milecastle.stores.sqlite.trouble import DRIVER_ERRORS, is_busy, translate

__all__ = ["APPLICATION_ID", "FORMAT_VERSION", "prepare"]

APPLICATION_ID = 0x4D696C65
"""Four letters in the file's header, "Mile"; the first migration writes them."""
FORMAT_VERSION = max(MIGRATIONS)


def prepare(path: str, timeout: float) -> sqlite3.Connection:
    """A connection to the file, ready for use; the file is created if it is not there."""
    try:
        connection = connect(path, timeout)
        try:
            _make_ready(connection, path, timeout)
        except BaseException:
            connection.close()
            raise
    except (*DRIVER_ERRORS, OSError) as error:
        raise translate(error, path, timeout) from error
    return connection


def _make_ready(connection: sqlite3.Connection, path: str, timeout: float) -> None:
    connection.execute("BEGIN")
    version = _version(connection, path)
    connection.execute("COMMIT")
    if version < FORMAT_VERSION:
        _write_ahead(connection, timeout)
        _migrate(connection, path)
        _keep_name(path)
    _write_ahead(connection, timeout)
    if not _schema(connection).items() >= _expected().items():
        raise Corrupted("the tables are not those of this version", place=path)


def _version(connection: sqlite3.Connection, path: str) -> int:
    """The format version of a file that is ours or empty; anything else is refused.

    To be called in a transaction: somebody may be making the tables at this moment.
    """
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    if application != APPLICATION_ID and (application or version or tables):
        raise InvalidRequest(
            f"'{path}' is an SQLite database of another program: give the store a file of its own"
        )
    if version > FORMAT_VERSION:
        raise FormatTooNew(found=version, supported=FORMAT_VERSION, place=f"'{path}'")
    if version < 0 or (version == 0) != (tables == 0):
        raise Corrupted(f"version {version} does not go with {tables} tables", place=path)
    return version


@cache
def _expected() -> dict[str, str]:
    """The tables and indexes that the migrations make."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for script in MIGRATIONS.values():
            for statement in statements(script):
                connection.execute(statement)
        return _schema(connection)


def _schema(connection: sqlite3.Connection) -> dict[str, str]:
    """The definition of each table and index. One that is misread is another table."""
    return dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())


def _number(connection: sqlite3.Connection, question: str) -> int:
    return int(connection.execute(question).fetchone()[0])


def _write_ahead(connection: sqlite3.Connection, timeout: float) -> None:
    """Turn to write-ahead logging, which lasts. SQLite does not wait for others here: we do."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, path)
        for number, script in MIGRATIONS.items():
            if number > version:
                for statement in statements(script):
                    connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _keep_name(path: str) -> None:
    """Make the new file's name as durable as what is written to it."""
    if os.name == "posix":
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
