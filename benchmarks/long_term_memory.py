"""Long-term memory: what remembering and searching cost. Peers take turns, best of several rounds.

- ``put_vs_step``: a step that writes three items to the same step without.
- ``get_vs_bare``: ``app.memory.get`` to a bare SELECT of the same row by its key.
- ``search_growth``: a search by field in one namespace of 1,000 items, among many more items (a
  million; quick: 50,000) to among none, on SQLite.
- ``vs_langgraph_store``: puts, gets and searches a second of ``MilecastleStore`` to those of
  LangGraph's own store, on the same PostgreSQL.

A figure with a suffix is of that database; without one it is the greater of both.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, TypedDict

import msgspec
import psycopg

from benchmarks.alternating import Peer, best_of
from benchmarks.postgres_server import fresh_schema, postgres_server
from benchmarks.report import Report, columns
from milecastle import END, START, App, Context, ExecutionConfig, StateGraph, Store
from milecastle.app.memory import AppMemory
from milecastle.model.memory import path_of
from milecastle.stores.opening import find_store

FACTS = ("users", "u7", "facts")
TEXT = {"kind": "fact", "text": "likes green tea"}
FIGURES = (
    "put_vs_step",
    "put_vs_step_sqlite",
    "put_vs_step_postgres",
    "get_vs_bare",
    "get_vs_bare_sqlite",
    "get_vs_bare_postgres",
    "search_growth",
    "vs_langgraph_store",
)


class Size(msgspec.Struct, frozen=True):
    """How much is measured."""

    steps: int = 300
    gets: int = 500
    items: int = 1_000_000
    rounds: int = 6


QUICK = Size(steps=100, gets=200, items=50_000, rounds=3)


class Count(TypedDict):
    n: int


def measure(*, quick: bool = False) -> Report:
    """Measure on SQLite, and on PostgreSQL if its binaries are there."""
    size, found = QUICK if quick else Size(), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        found |= on_sqlite(Path(folder), size)
    with postgres_server() as cluster:
        if cluster is not None:
            with fresh_schema(cluster) as schema:
                found |= on_postgres(cluster.url_of(schema), cluster.url, schema, size)
    return report(found)


def report(found: dict[str, float]) -> Report:
    """The figures, and the greater of both databases for each."""
    for name in ("put_vs_step", "get_vs_bare"):
        each = [found[f"{name}_{db}"] for db in ("sqlite", "postgres") if f"{name}_{db}" in found]
        found |= {name: max(each)} if each else {}
    figures = {name: round(found[name], 3) if name in found else None for name in FIGURES}
    rows = [(name, "-" if value is None else str(value)) for name, value in figures.items()]
    return Report(figures=figures, table=columns(rows))


def on_sqlite(folder: Path, size: Size) -> dict[str, float]:
    """The figures of SQLite."""
    path = folder / "memory.db"
    with closing(find_store(f"sqlite:///{path}")) as store:
        found = {"put_vs_step_sqlite": _put_vs_step(store, size)}
        with closing(sqlite3.connect(path)) as bare:
            query = "SELECT * FROM memories WHERE tenant = ? AND path = ? AND key = ?"

            def select() -> None:
                bare.execute(query, ("default", path_of(FACTS), "k7")).fetchone()

            found["get_vs_bare_sqlite"] = _get_vs_bare(store, select, size)
        found["search_growth"] = _search_growth(store, size)
    return found


def on_postgres(url: str, plain_url: str, schema: str, size: Size) -> dict[str, float]:
    """The figures of PostgreSQL."""
    with closing(find_store(url)) as store:
        found = {"put_vs_step_postgres": _put_vs_step(store, size)}
        with psycopg.connect(plain_url, autocommit=True) as bare:
            query = (
                f'SELECT * FROM "{schema}".memories WHERE tenant = %s AND path = %s AND key = %s'
            ).encode()

            def select() -> None:
                bare.execute(query, ("default", path_of(FACTS), "k7"), binary=True).fetchone()

            found["get_vs_bare_postgres"] = _get_vs_bare(store, select, size)
        if find_spec("langgraph.store.postgres") is not None:
            found["vs_langgraph_store"] = _vs_langgraph_store(store, plain_url, size)
    return found


def _loop(store: Store, steps: int, *, puts: bool) -> App[Count]:
    graph: StateGraph[Count] = StateGraph(Count, name="puts" if puts else "plain")

    @graph.node
    def count(state: Count, ctx: Context) -> Count:
        for number in range(3 if puts else 0):
            ctx.memory.put(FACTS, f"k{number}", TEXT)
        return {"n": state["n"] + 1}

    graph.add_edge(START, "count")
    graph.add_conditional_edges("count", lambda state: "count" if state["n"] < steps else END)
    graph.with_default_config(ExecutionConfig(max_steps=None))
    return graph.compile(store=store)


def _put_vs_step(store: Store, size: Size) -> float:
    apps = {name: _loop(store, size.steps, puts=name == "puts") for name in ("puts", "plain")}
    best = best_of(size.rounds, [Peer(name, partial(_timed, app)) for name, app in apps.items()])
    return best["puts"] / best["plain"]


def _timed(app: App[Count]) -> float:
    began = perf_counter()
    app.invoke({"n": 0})
    return perf_counter() - began


def _repeated(call: Callable[[], object], times: int) -> float:
    began = perf_counter()
    for _ in range(times):
        call()
    return perf_counter() - began


def _get_vs_bare(store: Store, select: Callable[[], None], size: Size) -> float:
    memory = _loop(store, 1, puts=False).memory
    memory.put(FACTS, "k7", TEXT)
    peers = {"get": lambda: memory.get(FACTS, "k7"), "bare": select}
    timed = [Peer(name, partial(_repeated, call, size.gets)) for name, call in peers.items()]
    best = best_of(size.rounds, timed)
    return best["get"] / best["bare"]


def _search_growth(store: Store, size: Size) -> float:
    memory = _loop(store, 1, puts=False).memory.for_tenant("growing")
    _fill(memory, ("users", "u7"), 1000)

    def search() -> None:
        found = memory.search(("users", "u7"), where={"number": {">=": 990}})
        assert len(found) == 10

    def timed() -> float:
        return best_of(size.rounds, [Peer("search", partial(_repeated, search, 5))])["search"]

    before = timed()
    for number in range(size.items // 1000):
        _fill(memory, ("users", f"v{number}"), 1000)
    return timed() / before


def _fill(memory: AppMemory, namespace: tuple[str, ...], items: int) -> None:
    for first in range(0, items, 250):
        memory.write(
            [
                memory.prepare(namespace, f"k{number:05}", {"number": number, **TEXT})
                for number in range(first, min(items, first + 250))
            ]
        )


def _vs_langgraph_store(store: Store, plain_url: str, size: Size) -> float:
    """Seconds of LangGraph's store for the same puts, gets and searches, to ours."""
    from langgraph.store.postgres import PostgresStore

    from milecastle.integrations.langgraph import MilecastleStore

    def work(peer: Any) -> float:
        began = perf_counter()
        for number in range(size.gets):
            peer.put(FACTS, f"k{number % 50}", {"number": number, **TEXT})
            peer.get(FACTS, f"k{number % 50}")
            peer.search(FACTS, filter={"kind": "fact"}, limit=10)
        return perf_counter() - began

    with PostgresStore.from_conn_string(plain_url) as theirs:
        theirs.setup()
        peers = [Peer("ours", partial(work, MilecastleStore(store)))]
        best = best_of(size.rounds, [*peers, Peer("theirs", partial(work, theirs))])
    return best["theirs"] / best["ours"]
