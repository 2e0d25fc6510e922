from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib.resources import files

_HERE = files("milecastle.stores.sqlite")


def statements(script: str) -> Iterator[str]:
    """A script's statements, one by one; ``executescript`` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += "" if line.startswith("--") else line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def _named(script: str) -> dict[str, str]:
    parts = script.split("-- name: ")[1:]
    named = (part.partition("\n") for part in parts)
    return {name.strip(): next(statements(body)) for name, _, body in named}


def _migrations() -> dict[int, str]:
    found = (file for file in (_HERE / "migrations").iterdir() if file.name.endswith(".sql"))
    return {int(file.name.partition("_")[0]): file.read_text("utf-8") for file in found}


SQL = _named((_HERE / "queries.sql").read_text("utf-8"))
MIGRATIONS = dict(sorted(_migrations().items()))
