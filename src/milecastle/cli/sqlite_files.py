"""Looking at an SQLite file without opening it as a store, which would bring it up to date."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from milecastle.cli.places import check_place, path_of
from milecastle.errors import Unavailable
from milecastle.stores.sqlite.migrating import FORMAT_VERSION
from milecastle.stores.sqlite.queries import MIGRATIONS

__all__ = ["FORMAT_VERSION", "missing_sql", "version_of_file"]


def version_of_file(path: Path) -> int:
    """The format version of a file; 0 if it is empty."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        raise Unavailable(f"'{path}' cannot be read as an SQLite file: {error}") from None


def missing_sql(url: str) -> str:
    """The SQL that brings a file up to date; "" if it is."""
    check_place(url)
    path = path_of(url)
    version = version_of_file(path) if path else 0
    scripts = [script for number, script in MIGRATIONS.items() if number > version]
    return f"BEGIN IMMEDIATE;\n{''.join(scripts)}COMMIT;\n" if scripts else ""
