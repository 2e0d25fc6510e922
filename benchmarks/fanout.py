"""A fan-out on SQLite: what an item costs beside a bare loop, and beside LangGraph's ``Send``.

The bare loop calls the same function, encodes its result and inserts the rows, a batch in a
transaction, into a file with the same settings. It has no threads, no graph and no join.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any, TypedDict

import msgspec.msgpack

from benchmarks.alternating import Peer, PeerMissing, best_of
from benchmarks.bare import Clock
from benchmarks.items import work
from benchmarks.report import Report, columns
from milecastle import END, START, App, StateGraph, append, open_store

ITEMS = 10_000
THEIR_ITEMS = 1_000
BATCH = 100
ROUNDS = 5
QUICK_ROUNDS = 1


class Work(TypedDict, total=False):
    """The state of the fan-out."""

    numbers: list[int]
    number: int
    found: Annotated[list[dict[str, Any]], append]


def compile_fanout(store: Any) -> App[Work]:
    """The fan-out as a graph."""
    graph = StateGraph(Work)

    def split(state: Work) -> None:
        return None

    def item(state: Work) -> Work:
        return {"found": [work(state.get("number", 0))]}

    graph.add_node("split", split)
    graph.add_node("item", item)
    graph.add_edge(START, "split")
    graph.map("split", "item", over="numbers", item="number")
    graph.add_edge("item", END)
    return graph.compile(store=store)


def ours(items: int, clock: Clock = perf_counter) -> float:
    """Seconds of our fan-out."""
    with _file() as path, _opened(path) as store:
        app = compile_fanout(store)
        start = clock()
        state = app.invoke({"numbers": list(range(items))}, thread="fanout").state
        seconds = clock() - start
    _verify(state.get("found", []), items)
    return seconds


def bare(items: int, clock: Clock = perf_counter) -> float:
    """Seconds of the bare loop."""
    encode = msgspec.msgpack.Encoder().encode
    with _file() as path:
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode = wal")
        database.execute("PRAGMA synchronous = full")
        database.execute("CREATE TABLE item (number INTEGER PRIMARY KEY, result BLOB) STRICT")
        start = clock()
        found: list[dict[str, Any]] = []
        for first in range(0, items, BATCH):
            rows: list[tuple[int, bytes]] = []
            for number in range(first, min(first + BATCH, items)):
                result = work(number)
                found.append(result)
                rows.append((number, encode(result)))
            database.execute("BEGIN")
            database.executemany("INSERT INTO item VALUES (?, ?)", rows)
            database.execute("COMMIT")
        seconds = clock() - start
        database.close()
    _verify(found, items)
    return seconds


@contextmanager
def _file() -> Generator[str]:
    with TemporaryDirectory(dir=Path.cwd()) as folder:
        yield str(Path(folder, "fanout.db"))


@contextmanager
def _opened(path: str) -> Generator[Any]:
    store = open_store(f"sqlite:///{path}")
    try:
        yield store
    finally:
        store.close()


def _verify(found: list[dict[str, Any]], items: int) -> None:
    if [result["number"] for result in found] != list(range(items)):
        raise AssertionError("the fan-out lost an item, or their order")


def measure(*, quick: bool = False) -> Report:
    """Time the three in turns; what an item costs, and the two ratios."""
    try:
        from benchmarks import langgraph_fanout
    except ModuleNotFoundError as error:
        raise PeerMissing("LangGraph is not installed: pip install langgraph") from error
    rounds = QUICK_ROUNDS if quick else ROUNDS
    best = best_of(rounds, [Peer("bare", lambda: bare(ITEMS)), Peer("ours", lambda: ours(ITEMS))])
    beside = best_of(
        rounds,
        [
            Peer("langgraph", lambda: langgraph_fanout.fan_out(THEIR_ITEMS)),
            Peer("ours", lambda: ours(THEIR_ITEMS)),
        ],
    )
    item_vs_bare = best["ours"] / best["bare"]
    vs_langgraph = beside["langgraph"] / beside["ours"]
    rows = [
        ("µs an item", "peer", "ours", "ratio"),
        _row("bare loop", best["bare"], best["ours"], ITEMS, item_vs_bare),
        _row("LangGraph Send", beside["langgraph"], beside["ours"], THEIR_ITEMS, vs_langgraph),
    ]
    return Report(
        figures={
            "item_vs_bare": round(item_vs_bare, 2),
            "vs_langgraph": round(vs_langgraph, 1),
            "item_microseconds": round(best["ours"] / ITEMS * 1e6, 1),
        },
        table=columns(rows),
    )


def _row(name: str, theirs: float, ours: float, items: int, ratio: float) -> tuple[str, ...]:
    per_item = 1e6 / items
    return name, f"{theirs * per_item:.1f}", f"{ours * per_item:.1f}", f"{ratio:.1f}"
