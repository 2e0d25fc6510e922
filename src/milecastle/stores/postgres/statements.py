"""The SQL of this store: files, with the schema's name put in by psycopg. Nothing else is built."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from psycopg import sql

from milecastle.stores.postgres import writing
from milecastle.stores.postgres.direct import Direct

__all__ = ["Statements", "compose", "file_text", "migrations"]

_HERE = Path(__file__).parent


class Statements:
    """The statements for one schema, as bytes that psycopg sends."""

    def __init__(self, schema: str) -> None:
        doubled = schema.replace("%", "%%")  # psycopg takes a single one for a parameter

        def load(name: str) -> bytes:
            return compose(file_text(name), schema=doubled)

        def direct(name: str, types: Sequence[int]) -> Direct:
            return Direct.of(name, compose(file_text(name), schema=schema), types)

        self.append = direct("append", writing.APPEND)
        self.append_many = direct("append_many", writing.APPEND_MANY)
        self.commit = direct("commit", writing.COMMIT)
        self.keep_results = direct("keep_results", writing.KEEP_RESULTS)
        self.head = load("head")
        self.read = load("read")
        self.entry_at = load("entry_at")
        self.locate = load("locate")
        self.locate_anywhere = load("locate_anywhere")
        self.entries = load("entries")
        self.history = load("history")
        self.runs = load("runs")
        self.run = load("run")
        self.failure = load("failure")
        self.manifest = load("manifest")
        self.threads = load("threads")
        self.threads_by_status = load("threads_by_status")
        self.bury = load("bury")
        self.sweep_records = load("sweep_records")
        self.sweep_entries = load("sweep_entries")
        self.sweep_results = load("sweep_results")
        self.prune = load("prune")
        self.prune_on = load("prune_on")


def compose(text: str, **identifiers: str) -> bytes:
    """A file's text with names in place of its braces, each quoted by psycopg."""
    quoted = {name: sql.Identifier(value) for name, value in identifiers.items()}
    # The text is one of our own files: as good as a literal, which no checker can see.
    template = sql.SQL(text)  # pyright: ignore[reportArgumentType]
    return template.format(**quoted).as_bytes(None)


def migrations() -> list[tuple[int, str]]:
    """The numbered migrations, in order."""
    files = sorted((_HERE / "migrations").glob("*.sql"))
    return [(int(file.name.partition("_")[0]), _text(file)) for file in files]


def file_text(name: str) -> str:
    """The text of one file of SQL."""
    return _text(_HERE / "sql" / f"{name}.sql")


@lru_cache(maxsize=64)
def _text(path: Path) -> str:
    return path.read_text("utf-8")
