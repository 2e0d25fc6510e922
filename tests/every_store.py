"""Fresh stores of every kind, for tests that hold for all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from milecastle import Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from tests.postgres_cluster import SKIPPED, emptied, new_schema, the_cluster

KINDS = ("memory", "jsonl", "sqlite", "postgres")
POSTGRES = pytest.mark.skipif(SKIPPED, reason="MILECASTLE_NO_POSTGRES is set")
EVERY_KIND = [pytest.param(kind, marks=[POSTGRES] if kind == "postgres" else []) for kind in KINDS]
EVERY_PAIR = [
    pytest.param(one, other, marks=[POSTGRES] if "postgres" in (one, other) else [])
    for one in KINDS
    for other in KINDS
]


class Stores:
    """Opens new stores, each with its own name, and closes them in the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[Store] = []

    def open(self, kind: str, name: str = "store") -> Store:
        """A fresh store of a kind; two with different names share nothing."""
        store = self.reopen(kind, name)
        if kind == "postgres":
            emptied(_url_of(name))
        self._open.append(store)
        return store

    def url(self, kind: str, name: str = "store") -> str:
        """The URL by which another process opens the store of this kind and name."""
        path = self._folder / f"{name}.{kind}"
        return {"jsonl": f"file://{path}", "sqlite": f"sqlite:///{path}"}.get(kind) or _url_of(name)

    def reopen(self, kind: str, name: str = "store") -> Store:
        """Another store on the same place; the caller closes it. In memory it is empty."""
        return _open(kind, self._folder / f"{name}.{kind}", name)

    def close(self) -> None:
        """Close what was opened."""
        for store in self._open:
            store.close()


def _open(kind: str, path: Path, name: str) -> Store:
    if kind == "memory":
        return MemoryStore()
    if kind == "jsonl":
        return JsonlStore(path)
    if kind == "sqlite":
        return SqliteStore(path)
    from milecastle.stores.postgres import PostgresStore

    return PostgresStore(_url_of(name))


@cache
def _url_of(name: str) -> str:
    """A schema for each name: making one costs more than emptying it."""
    return the_cluster().url_of(new_schema())
