"""Opening a file: checks it is ours, not too new, and has its tables.

Rules:

- A file that is not ours is never changed. A new file is accessible only to its owner.
- A migration runs in a transaction that excludes every other writer, and reads the version again
  inside it, so any number of processes may open a file at once.
- The tables must be exactly those the migrations create: a damaged definition would make rows
  unreadable or invisible. Additional tables and indexes are allowed.
- The format version is the last migration's number; each writes its own.
- ``SqliteFile`` is for callers that must not open the file as a store, which would migrate it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from functools import cache
from pathlib import Path

from milecastle.errors import Corrupted, FormatTooNew, InvalidRequest, Unavailable
from milecastle.ports.formats import unreleased
from milecastle.ports.maintenance import Check, Pending
from milecastle.stores.sqlite.connections import DRIVER_ERRORS, connect, is_busy, translate
from milecastle.stores.sqlite.queries import MIGRATIONS, statements
from milecastle.stores.sqlite.rows import checksum

APPLICATION_ID = 0x4D437374
"""Four letters in the file's header, "MCst"; the first migration writes them."""
UNRELEASED_ID = 0x4D696C65
"""Those of the versions before the first release."""
FORMAT_VERSION = max(MIGRATIONS)


class SqliteFile:
    def __init__(self, path: str | Path, *, timeout: float = 30.0) -> None:
        self.path = str(Path(path).absolute())
        self._timeout = timeout

    def pending_migrations(self) -> Pending:
        try:
            place = f"{Path(self.path).as_uri()}?mode=ro"
            with closing(sqlite3.connect(place, uri=True, isolation_level=None)) as connection:
                connection.execute("BEGIN")
                version = _version(connection, self.path)
        except sqlite3.Error as error:
            raise Unavailable(f"'{self.path}' cannot be read as an SQLite file: {error}") from None
        scripts = "".join(script for number, script in MIGRATIONS.items() if number > version)
        sql = f"BEGIN IMMEDIATE;\n{scripts}COMMIT;\n" if scripts else ""
        return Pending(version=version, latest=FORMAT_VERSION, sql=sql)

    def migrate(self) -> str:
        missing = self.pending_migrations().sql
        if missing:
            prepare(self.path, self._timeout).close()
        return missing

    def examine(self) -> tuple[Check, ...]:
        return ()


def prepare(path: str, timeout: float) -> sqlite3.Connection:
    try:
        _make_private(path)
        connection = connect(path, timeout)
        try:
            _make_ready(connection, path, timeout)
        except BaseException:
            connection.close()
            raise
    except (*DRIVER_ERRORS, OSError) as error:
        raise translate(error, path, timeout) from error
    return connection


def _make_private(path: str) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return


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
    """An empty file's or our own file's format version; anything else is refused.

    To be called in a transaction: another process may be creating the tables at this moment.
    """
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    if application == UNRELEASED_ID:
        raise unreleased(f"'{path}'")
    if application != APPLICATION_ID and (application or version or tables):
        raise InvalidRequest(
            f"'{path}' is an SQLite database of another program: use a separate file for the store"
        )
    if version > FORMAT_VERSION:
        raise FormatTooNew(found=version, supported=FORMAT_VERSION, place=f"'{path}'")
    if version < 0 or (version == 0) != (tables == 0):
        raise Corrupted(f"version {version} does not match {tables} tables", place=path)
    return version


@cache
def _expected() -> dict[str, str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _apply(connection, above=0)
        return _schema(connection)


def _schema(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())


def _number(connection: sqlite3.Connection, question: str) -> int:
    return int(connection.execute(question).fetchone()[0])


def _write_ahead(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to write-ahead logging, permanently. SQLite does not wait for others here: we do."""
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
    _apply(connection, above=_version(connection, path))
    connection.execute("COMMIT")


def _apply(connection: sqlite3.Connection, *, above: int) -> None:
    connection.create_function("checksum", -1, checksum, deterministic=True)
    for number, script in MIGRATIONS.items():
        if number > above:
            for statement in statements(script):
                connection.execute(statement)


def _keep_name(path: str) -> None:
    if os.name == "posix":
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
