"""Writing by a caller's own connection to the file, in its transaction.

Rules:

- All a call's statements are between a savepoint and its release: a refused call leaves the
  caller's transaction as it was.
- A transaction that Python has not begun yet is begun here as one that writes: otherwise what a
  call has read could change before it writes.
- Nothing written is remembered: it may be rolled back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey, require_key
from milecastle.ports.mailbox import Debounce, Sent
from milecastle.ports.store import Batch
from milecastle.stores.sqlite.connections import DRIVER_ERRORS, translate
from milecastle.stores.sqlite.mailbox import SqliteMailbox
from milecastle.stores.sqlite.transaction import Transaction

_LEGACY: Final = -1
"""``autocommit`` of a connection whose ``isolation_level`` decides; Python 3.12 has others."""


class JoinedFile:
    def __init__(
        self,
        joined: Callable[[], AbstractContextManager[Transaction]],
        write: Callable[[Transaction, Batch], object],
        mailbox: SqliteMailbox,
    ) -> None:
        self._joined = joined
        self._write = write
        self._mailbox = mailbox

    def commit(self, batch: Batch) -> None:
        require_key(batch.key)
        with self._joined() as transaction:
            self._write(transaction, batch)

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        debounce: Debounce | None = None,
    ) -> Sent:
        with self._joined() as transaction:
            return self._mailbox.send_in(
                transaction, key, topic, mark, payload, graph, debounce=debounce
            )


@contextmanager
def joined_transaction(connection: Any, path: str) -> Generator[Transaction, None, None]:
    """The caller's transaction; it has all the block's statements, or none."""
    if not isinstance(connection, sqlite3.Connection):
        raise InvalidRequest(
            f"connection= takes a sqlite3.Connection to '{path}', not "
            f"{type(connection).__module__}.{type(connection).__qualname__}"
        )
    try:
        text_factory = connection.text_factory
        cursor = connection.cursor()
        cursor.row_factory = None
        _check_file(cursor, path)
        _begin(connection, cursor)
    except sqlite3.ProgrammingError as error:
        raise InvalidRequest(f"the connection cannot be used here: {error}") from None
    except DRIVER_ERRORS as error:
        raise translate(error, path, 0) from error
    is_done = False
    try:
        connection.text_factory = str
        cursor.execute("SAVEPOINT milecastle")
        yield Transaction(cursor, path)
        is_done = True
    except DRIVER_ERRORS as error:
        raise translate(error, path, 0) from error
    finally:
        connection.text_factory = text_factory
        if connection.in_transaction:  # a full disk, say, ends all of it
            if not is_done:
                cursor.execute("ROLLBACK TO milecastle")
            cursor.execute("RELEASE milecastle")
        cursor.close()


def _check_file(cursor: sqlite3.Cursor, path: str) -> None:
    found = {str(row[1]): str(row[2]) for row in cursor.execute("PRAGMA database_list")}
    file = found.get("main", "")
    if not file or not Path(file).samefile(path):
        where = f"'{file}'" if file else "a database in memory"
        raise InvalidRequest(
            f"the connection is to {where}, and the store is '{path}': one transaction needs one "
            "file, as the connection's main database"
        )


def _begin(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
    if connection.in_transaction:
        return
    is_legacy = getattr(connection, "autocommit", _LEGACY) == _LEGACY
    if connection.isolation_level is None or not is_legacy:
        raise InvalidRequest(
            "the connection is in autocommit, so there is no transaction to be part of: execute "
            "BEGIN IMMEDIATE on it first, and COMMIT afterwards"
        )
    cursor.execute("BEGIN IMMEDIATE")
