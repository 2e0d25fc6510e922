"""The SQLite store beside a bare loop of INSERTs into the same table, and what it takes on disk.

    python -m benchmarks.store_sqlite [--quick]

Every figure is a ratio or a plain number:

- ``commit_*_vs_bare``: batches a second that the store commits, against bare INSERTs of the very
  rows that it wrote.
- ``steps_*_vs_bare``: the same with a whole graph running on top.
- ``bytes_vs_raw`` and ``bytes_10x``: the closed file against the updates, and what ten times the
  steps make of it.
- ``head_vs_snapshot``: reading and decoding the head against one row that holds the same state.
- ``page_growth``: 100 history entries of a long thread against those of a short one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal, TypedDict

import msgspec.structs

from benchmarks.alternating import Peer, best_of
from milecastle import END, START, App, ExecutionOptions, StateGraph, append
from milecastle.codec.deltas import LogCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.position import restore
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.sqlite import SqliteStore

ITEM = 400
KEY = ThreadKey("default", "loop")
COLUMNS = 17
Synchronous = Literal["full", "normal"]


class Items(TypedDict):
    """A list that grows by an item a step."""

    items: Annotated[list[bytes], append]


def compile_loop(store: Store, steps: int, made: list[bytes]) -> App[Items]:
    """A graph that appends one of the items at each step."""

    def add(state: Items) -> Items:
        return {"items": [made[len(state["items"])]]}

    graph = StateGraph(Items)
    graph.add_node("add", add)
    graph.add_edge(START, "add")
    graph.add_conditional_edges(
        "add", lambda state: "add" if len(state["items"]) < steps else END, ["add", END]
    )
    return graph.compile(store=store)


def run_loop(store: Store, steps: int, made: list[bytes]) -> float:
    """Run the graph and return its seconds."""
    app = compile_loop(store, steps, made)
    options = ExecutionOptions(max_steps=steps + 1)
    began = perf_counter()
    app.invoke({"items": []}, KEY, options=options)
    return perf_counter() - began


class Recording(SqliteStore):
    """Keeps the batches that a run commits."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, synchronous="normal")
        self.batches: list[Batch] = []

    def commit(self, batch: Batch) -> None:
        """Keep the batch."""
        super().commit(batch)
        self.batches.append(batch)


def commit_all(folder: Path, synchronous: Synchronous, batches: list[Batch]) -> float:
    """Commit recorded batches to a fresh store and return the seconds."""
    with _fresh(folder) as path, closing(SqliteStore(path, synchronous=synchronous)) as store:
        began = perf_counter()
        for batch in batches:
            store.commit(batch)
        return perf_counter() - began


def insert_all(folder: Path, synchronous: Synchronous, rows: list[tuple[Any, ...]]) -> float:
    """Insert the same rows one by one, each its own transaction, and return the seconds."""
    with _fresh(folder) as path:
        SqliteStore(path).close()
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(f"PRAGMA synchronous = {synchronous}")
            statement = f"INSERT INTO entries VALUES ({', '.join('?' * COLUMNS)})"
            began = perf_counter()
            for row in rows:
                database.execute(statement, row)
            return perf_counter() - began


class _fresh:  # noqa: N801 - reads as a verb
    """A path in the folder at which nothing stands, before and after."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "bench.db"

    def __enter__(self) -> Path:
        self.__exit__()
        return self._path

    def __exit__(self, *_: object) -> None:
        for end in ("", "-wal", "-shm"):
            Path(f"{self._path}{end}").unlink(missing_ok=True)


def speeds(folder: Path, steps: int, rounds: int) -> dict[str, float]:
    """Return how much of the bare rate the store keeps, alone and under a graph."""
    made = [os.urandom(ITEM) for _ in range(steps)]
    with _fresh(folder) as path:
        with closing(Recording(path)) as recording:
            run_loop(recording, steps, made)
        with closing(sqlite3.connect(path)) as database:
            rows: list[tuple[Any, ...]] = database.execute("SELECT * FROM entries").fetchall()
    found: dict[str, float] = {}
    modes: tuple[Synchronous, ...] = ("full", "normal")
    for mode in modes:

        def steps_of(mode: Synchronous = mode) -> float:
            with _fresh(folder) as path, closing(SqliteStore(path, synchronous=mode)) as store:
                return run_loop(store, steps, made)

        def commits_of(mode: Synchronous = mode) -> float:
            return commit_all(folder, mode, recording.batches)

        def inserts_of(mode: Synchronous = mode) -> float:
            return insert_all(folder, mode, rows)

        peers = [Peer("bare", inserts_of), Peer("commit", commits_of), Peer("steps", steps_of)]
        best = best_of(rounds, peers)
        found[f"bare_{mode}_us"] = best["bare"] / len(rows) * 1e6
        for name in ("commit", "steps"):
            found[f"{name}_{mode}_us"] = best[name] / len(rows) * 1e6
            found[f"{name}_{mode}_vs_bare"] = best["bare"] / best[name]
    return found


def growth(folder: Path, steps: int) -> dict[str, float]:
    """Return the bytes on disk against the updates, at some steps and at ten times as many."""
    made = [os.urandom(ITEM) for _ in range(10 * steps)]
    sizes: list[int] = []
    figures: dict[str, float] = {}
    for count in (steps, 10 * steps):
        with _fresh(folder) as path:
            with closing(SqliteStore(path, synchronous="normal")) as store:
                run_loop(store, count, made)
            sizes.append(path.stat().st_size)
            if count > steps:
                with closing(SqliteStore(path)) as store:
                    figures["head_vs_snapshot"] = head_against_snapshot(store)
    figures["bytes_vs_raw"] = sizes[0] / (steps * ITEM)
    figures["bytes_10x"] = sizes[1] / sizes[0]
    return figures


def head_against_snapshot(store: SqliteStore) -> float:
    """Return the time of reading and decoding the head against that of one snapshot of it."""
    codec = LogCodec(ValueCodec(TypeRegistry()))

    def read(key: ThreadKey) -> dict[str, Any]:
        chain = store.read(key)
        if chain is None:
            raise LookupError(str(key))
        return restore(chain, codec).values

    chain = store.read(KEY)
    if chain is None:
        raise LookupError(str(KEY))
    whole = codec.seal(codec.encode_state(restore(chain, codec).values))
    entry = msgspec.structs.replace(
        chain.entries[-1], seq=1, kind=SNAPSHOT, base_seq=1, roll_seq=1, payload=whole
    )
    alone = ThreadKey("default", "alone")
    store.commit(Batch(key=alone, head=0, entries=(entry,)))
    best = best_of(15, [_timed("head", lambda: read(KEY)), _timed("one", lambda: read(alone))])
    store.delete(alone)
    return best["head"] / best["one"]


def page_growth(folder: Path, short: int, long: int) -> dict[str, float]:
    """Return the time of a page of 100 in a long history against one in a short history."""
    made = [os.urandom(ITEM) for _ in range(long)]
    peers: list[Peer] = []
    stores: list[SqliteStore] = []
    for count in (short, long):
        store = SqliteStore(folder / f"page{count}.db", synchronous="normal")
        run_loop(store, count, made)
        stores.append(store)
        peers.append(_timed(str(count), partial(_list_page, store)))
    best = best_of(30, peers)
    for store in stores:
        store.close()
    return {"page_growth": best[str(long)] / best[str(short)], "page_us": best[str(long)] * 1e6}


def _list_page(store: SqliteStore) -> None:
    list(store.history(KEY, limit=100))


def _timed(name: str, call: Callable[[], object]) -> Peer:
    def run() -> float:
        began = perf_counter()
        call()
        return perf_counter() - began

    return Peer(name, run)


def figures(*, quick: bool = False) -> dict[str, float]:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = speeds(folder, 300 if quick else 2_000, 2 if quick else 7)
        found |= growth(folder, 100 if quick else 1_000)
        found |= page_growth(folder, 100, 300 if quick else 20_000)
    return {name: round(value, 3) for name, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(figures(quick="--quick" in sys.argv), indent=2))
