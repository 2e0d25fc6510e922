"""The least that an engine has to do: the very rows that a run of ours left, one commit each.

A run of Milecastle is recorded once; the bare loops then write its rows, or its lines, into the
same table layout, with the same settings, on the same medium. They encode nothing, decide
nothing and check nothing. One statement in autocommit is one transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from milecastle.stores.sqlite.connections import Ahead

Row = tuple[Any, ...]
Synchronous = Literal["full", "normal"]

Clock = Callable[[], float]
"""What seconds are read from: `perf_counter`, or `process_time` for those of the processor."""


def sqlite_rows(path: Path, table: str = "entries") -> list[Row]:
    """The log, or another table, in a closed file of ours."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


def sqlite_inserts(
    path: Path, rows: list[Row], synchronous: Synchronous, clock: Clock = perf_counter
) -> float:
    """Insert the rows into a file that our store has set up; return the seconds."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA synchronous = {synchronous}")
        cursor = database.cursor()
        statement = f"INSERT INTO entries VALUES ({', '.join('?' * len(rows[0]))})"
        began = clock()
        for row in rows:
            cursor.execute(statement, row)
        return clock() - began


def sqlite_inserts_with_room(path: Path, rows: list[Row], table: str = "entries") -> float:
    """The same with every commit synced, in a log that is laid out as our store does it."""
    ahead = Ahead(str(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = full")
        cursor = database.cursor()
        statement = f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})"
        began = perf_counter()
        for row in rows:
            cursor.execute(statement, row)
            ahead.until -= 1
            if not ahead.until:
                ahead.make_room(cursor)
        return perf_counter() - began


def file_lines(path: Path) -> list[bytes]:
    """The lines of a log of ours."""
    return path.read_bytes().splitlines(keepends=True)


def file_writes(path: Path, lines: list[bytes], clock: Clock = perf_counter) -> float:
    """Append the lines to a new file, each synced; return the seconds."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
    try:
        began = clock()
        for line in lines:
            os.write(fd, line)
            os.fdatasync(fd)
        return clock() - began
    finally:
        os.close(fd)


def postgres_rows(url: str, schema: str, table: str = "entries") -> list[Row]:
    """The log, or another table, in a schema of ours, ordered by its first column."""
    import psycopg
    from psycopg import sql

    query = sql.SQL("SELECT * FROM {} ORDER BY 1").format(sql.Identifier(schema, table))
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def postgres_inserts(
    url: str, schema: str, rows: list[Row], clock: Clock = perf_counter, table: str = "entries"
) -> float:
    """Insert the rows into a schema that our store has set up; return the seconds."""
    import psycopg
    from psycopg import sql

    places = sql.SQL(", ").join([sql.Placeholder()] * len(rows[0]))
    insert = sql.SQL("INSERT INTO {} VALUES ({})").format(sql.Identifier(schema, table), places)
    with psycopg.connect(url, autocommit=True) as connection:
        statement = insert.as_bytes(connection)
        cursor = connection.cursor()
        began = clock()
        for row in rows:
            cursor.execute(statement, row, prepare=True)
        return clock() - began
