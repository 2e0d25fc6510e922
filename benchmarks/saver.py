"""MilecastleSaver beside LangGraph's own savers, on the same SQLite and the same PostgreSQL.

Everything is durable: each call returns after its commit. Figures are theirs / ours, so that more
is better:

- ``bytes_ratio``: bytes on disk after a loop of 1,000 steps, each of which appends 400 bytes to a
  list; a graph of LangGraph writes them.
- ``put_ratio``: the time of a chat of 500 turns: ``put`` and ``put_writes``, called directly.
- ``get_ratio``: the time of ``get_tuple`` at the end of that chat, by a saver that is in use, as in
  a program that serves chats. Ours asks the store whether the thread is still as it was.
- ``cold_get_ratio``: the same by a saver that was just made and so remembers nothing.
- ``page_ratio``: the time of a page of 100 checkpoints of the loop.
- ``concurrent_ratio``: the time of 50 chats at once through one pool, on PostgreSQL.

Without a prefix, a figure is the lesser of both databases.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.alternating import PeerMissing, best_of, timed
from benchmarks.growing import schema_size
from benchmarks.langgraph_stores import POOL, config, postgres_saver, sqlite_saver
from benchmarks.postgres_server import postgres_server
from benchmarks.report import Report, columns
from milecastle.ports.store import Store
from milecastle.stores.opening import find_store

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

FIGURES = ("bytes", "put", "get", "cold_get", "page", "concurrent")
PAGE = 100


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    steps: int = 1_000
    turns: int = 500
    chats: int = 50
    chat_turns: int = 20
    rounds: int = 5


QUICK = Size(steps=60, turns=10, chats=5, chat_turns=3, rounds=1)

Found = dict[str, tuple[float, float]]
"""For each figure theirs and ours."""


def measure(*, quick: bool = False) -> Report:
    """Measure both databases; PostgreSQL only where there is one."""
    if find_spec("langgraph.checkpoint.sqlite") is None:
        raise PeerMissing("langgraph-checkpoint-sqlite is not installed")
    size = QUICK if quick else Size()
    found: dict[str, Found] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(postgres_server())
        found["sqlite"] = _sqlite(folder, size)
        if cluster is not None and find_spec("langgraph.checkpoint.postgres"):
            found["postgres"] = _postgres(cluster, size)
    return Report(figures=_figures(found), table=_table(found))


def _sqlite(folder: Path, size: Size) -> Found:
    theirs, ours = folder / "theirs.db", folder / "ours.db"
    with sqlite_saver(theirs) as peer, closing(find_store(f"sqlite:///{ours}")) as store:
        grow(peer, store, size.steps)
        page = _page(peer, store, size)
    weights = theirs.stat().st_size, ours.stat().st_size
    with (
        sqlite_saver(folder / "chat-theirs.db") as peer,
        closing(find_store(f"sqlite:///{folder / 'chat-ours.db'}")) as store,
    ):
        return {"bytes": weights, "page": page, **_chat(peer, store, size)}


def _postgres(cluster: Cluster, size: Size) -> Found:
    url = cluster.url_of("ours")
    with postgres_saver(cluster.url) as peer, closing(find_store(url)) as store:
        grow(peer, store, size.steps)
        page = _page(peer, store, size)
        weights = schema_size(cluster, "public"), schema_size(cluster, "ours")
        found: Found = {"bytes": weights, "page": page, **_chat(peer, store, size)}
    found["concurrent"] = concurrent(cluster, size)
    return found


def grow(peer: Any, store: Store, steps: int) -> None:
    """The loop on both."""
    from benchmarks.langgraph_growth import grow as grow_one

    for saver in (peer, _saver(store)):
        grow_one(saver, steps)


def _page(peer: Any, store: Store, size: Size) -> tuple[float, float]:
    limit = min(PAGE, size.steps)

    def page(saver: Any) -> None:
        if len(list(saver.list(config(size.steps), limit=limit))) != limit:
            raise AssertionError("a page was not full")

    return _both(min(2, size.rounds), lambda: page(peer), lambda: page(_saver(store)))


def _chat(peer: Any, store: Store, size: Size) -> Found:
    putting = best_of(
        min(2, size.rounds),
        [
            timed("theirs", partial(chat, peer, size.turns)),
            timed("ours", lambda: chat(_saver(store), size.turns)),
        ],
    )
    theirs = partial(_get, peer, size)
    getting = _both(size.rounds, theirs, partial(_get, _saver(store), size))
    cold = _both(size.rounds, theirs, lambda: _get(_saver(store), size))
    return {
        "put": (putting["theirs"], putting["ours"]),
        "get": getting,
        "cold_get": cold,
    }


def _both(
    rounds: int, theirs: Callable[[], object], ours: Callable[[], object]
) -> tuple[float, float]:
    best = best_of(rounds, [timed("theirs", theirs), timed("ours", ours)])
    return best["theirs"], best["ours"]


def _get(saver: Any, size: Size) -> None:
    found = saver.get_tuple(config(size.turns, "chat"))
    if len(found.checkpoint["channel_values"]["messages"]) != 2 * size.turns:
        raise AssertionError("messages are missing")


def chat(saver: Any, turns: int) -> None:
    """A chat in a thread that is empty."""
    saver.delete_thread("chat")
    place = config(turns, "chat")
    for checkpoint, metadata, versions, writes in course(saver, turns):
        place = saver.put(_rooted(place), checkpoint, metadata, versions)
        if writes:
            saver.put_writes(place, writes, f"task-{metadata['step']}", "~__pregel_pull, bot")


async def chat_async(saver: Any, turns: int, thread: str) -> None:
    """The same on an event loop."""
    place = config(turns, thread)
    for checkpoint, metadata, versions, writes in course(saver, turns):
        place = await saver.aput(_rooted(place), checkpoint, metadata, versions)
        if writes:
            task = f"task-{metadata['step']}"
            await saver.aput_writes(place, writes, task, "~__pregel_pull, bot")


def course(saver: Any, turns: int) -> Iterator[tuple[Any, ...]]:
    """The checkpoints of a chat, each with its metadata, new versions and writes.

    As a graph with one node writes them: the input, what the input led to, and the answer.
    """
    messages_of = import_module("langchain_core.messages")
    base = import_module("langgraph.checkpoint.base")
    messages: list[Any] = []
    versions: dict[str, Any] = {}
    for number in range(turns):
        asked = messages_of.HumanMessage(f"question {number} " + "q" * 80, id=f"h{number}")
        said = messages_of.AIMessage(f"answer {number} " + "a" * 300, id=f"a{number}")
        before, between = messages, [*messages, asked]
        messages = [*between, said]
        steps = (
            ("input", {"messages": before, "__start__": {"messages": [asked]}}, asked),
            ("loop", {"messages": between, "branch:to:bot": None}, said),
            ("loop", {"messages": messages}, None),
        )
        for place, (source, values, written) in enumerate(steps):
            changed = ("messages", "branch:to:bot", "__start__") if place else ("__start__",)
            new = {name: saver.get_next_version(versions.get(name), None) for name in changed}
            versions = {**versions, **new}
            checkpoint = {
                **base.empty_checkpoint(),
                "id": str(base.uuid6(clock_seq=3 * number + place)),
                "channel_values": values,
                "channel_versions": versions,
                "versions_seen": {"bot": {"branch:to:bot": versions.get("branch:to:bot", 0)}},
            }
            metadata: dict[str, Any] = {
                "source": source,
                "step": 3 * number + place - 1,
                "parents": {},
            }
            yield checkpoint, metadata, new, [("messages", [written])] if written else []


def _rooted(place: Any) -> Any:
    return {"configurable": {"checkpoint_ns": "", **place["configurable"]}}


def concurrent(cluster: Cluster, size: Size) -> tuple[float, float]:
    """The seconds of many chats at once through one pool of the same size, theirs and ours."""
    with postgres_saver(cluster.url):
        theirs = asyncio.run(_their_chats(cluster.url, size))
    with closing(find_store(cluster.url_of("many"))) as store:
        ours = asyncio.run(_chats(_saver(store), size))
    return theirs, ours


async def _their_chats(url: str, size: Size) -> float:
    savers = import_module("langgraph.checkpoint.postgres.aio")
    pools = import_module("psycopg_pool")
    rows = import_module("psycopg.rows")
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": rows.dict_row}
    pool = pools.AsyncConnectionPool(
        url, min_size=POOL, max_size=POOL, kwargs=settings, open=False, timeout=300
    )
    async with pool:
        await pool.wait()
        return await _chats(savers.AsyncPostgresSaver(pool), size)


async def _chats(saver: Any, size: Size) -> float:
    names = [f"chat-{number}" for number in range(size.chats)]
    await chat_async(saver, 1, "warm")
    began = perf_counter()
    await asyncio.gather(*(chat_async(saver, size.chat_turns, name) for name in names))
    return perf_counter() - began


def _saver(store: Store) -> Any:
    from milecastle.integrations.langgraph import MilecastleSaver

    return MilecastleSaver(store)


def _figures(found: dict[str, Found]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for name in FIGURES:
        ratios = {
            store: round(pair[name][0] / pair[name][1], 2)
            for store, pair in found.items()
            if name in pair
        }
        figures[f"{name}_ratio"] = min(ratios.values(), default=None)
        figures |= {f"{store}_{name}_ratio": ratio for store, ratio in ratios.items()}
    return figures


def _table(found: dict[str, Found]) -> str:
    rows = [("figure", "theirs", "ours", "ratio")]
    for store, pairs in found.items():
        for name, (theirs, ours) in pairs.items():
            form = "{:,.0f}" if name == "bytes" else "{:.4f} s"
            cells = form.format(theirs), form.format(ours), f"{theirs / ours:.1f}"
            rows.append((f"{store} {name}", *cells))
    return columns(rows)
