"""Messages to threads: what sending, receiving and waking cost. Peers take turns, best of several.

- ``send_vs_insert``: ``app.send`` to a bare INSERT of the very rows it leaves, one commit each, in
  the same table. The INSERT assigns no number and looks for no waiting thread.
- ``receive_vs_step``: a step that receives a message and consumes it, to the same step without.
- ``wake_ms_vs_submit``: from ``asend`` until a waiting node has the message, to the time from
  ``asubmit`` to the start of a node, on the same idle worker and on PostgreSQL; medians.
- ``vs_dbos``: messages sent and received a second, to those of DBOS on the same PostgreSQL.
  ``send_vs_dbos`` and ``receive_vs_dbos`` are its parts.

A figure with a suffix is of that database; without one it is the greater of both.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from benchmarks import bare
from benchmarks.alternating import Peer, best_of
from benchmarks.bare import Row
from benchmarks.dbos_messages import TOPIC
from benchmarks.postgres_server import fresh_schema, postgres_server
from benchmarks.report import Report, columns
from milecastle import END, START, App, Context, ExecutionConfig, StateGraph
from milecastle.fleet.worker import Worker
from milecastle.stores.opening import find_store
from milecastle.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

DATABASE = "messages.db"
_WARM = 6
"""PostgreSQL plans a statement again the first five times."""

FIGURES = (
    "send_vs_insert",
    "send_vs_insert_sqlite",
    "send_vs_insert_postgres",
    "receive_vs_step",
    "receive_vs_step_sqlite",
    "receive_vs_step_postgres",
    "wake_ms",
    "wake_ms_vs_submit",
    "vs_dbos",
    "send_vs_dbos",
    "receive_vs_dbos",
)


class Size(msgspec.Struct, frozen=True):
    """How much is measured. DBOS gets ``threads`` times ``each`` messages."""

    messages: int = 1000
    rounds: int = 8
    pings: int = 40
    threads: int = 20
    each: int = 20
    peer_rounds: int = 4


QUICK = Size(messages=200, rounds=3, pings=10, threads=5, each=20, peer_rounds=1)


class Count(TypedDict):
    n: int


def measure(*, quick: bool = False) -> Report:
    """Measure on a file and on a private server; fewer figures where there is no PostgreSQL."""
    size = QUICK if quick else Size()
    with tempfile.TemporaryDirectory() as folder:
        found = on_sqlite(Path(folder), size)
    with postgres_server() as cluster:
        if cluster is not None:
            found |= on_postgres(cluster, size)
    return report(found)


def on_sqlite(folder: Path, size: Size) -> dict[str, float]:
    """Sending and receiving, each commit synced."""
    return _costs("sqlite", size, partial(_in_folder, folder), sqlite_rows, _sqlite_bare)


def on_postgres(cluster: Cluster, size: Size) -> dict[str, float]:
    """Sending, receiving and waking; beside DBOS, where it is installed."""
    rows, inserts = partial(_postgres_rows, cluster), partial(_postgres_bare, cluster)
    found = _costs("postgres", size, partial(_in_schema, cluster), rows, inserts)
    found |= asyncio.run(_waking(cluster, size))
    return found | (_beside_dbos(cluster, size) if find_spec("dbos") else {})


def report(found: Mapping[str, float]) -> Report:
    """The figures, and those of both databases."""
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    for figure in ("send_vs_insert", "receive_vs_step"):
        figures[figure] = max(found[name] for name in found if name.startswith(figure))
    figures |= found
    rounded = {name: value and round(value, 3) for name, value in figures.items()}
    shown = [(name, "-" if value is None else f"{value:.3f}") for name, value in rounded.items()]
    return Report(figures=rounded, table=columns([("figure", ""), *shown]))


def _loop(steps: int, *, receives: bool) -> StateGraph[Count]:
    graph: StateGraph[Count] = StateGraph(Count, name="messages")
    graph.with_default_config(ExecutionConfig(max_steps=None))

    @graph.node
    def advance(state: Count, ctx: Context) -> dict[str, Any]:
        return {"n": state["n"] + (ctx.receive(TOPIC, int) if receives else 1)}

    graph.add_edge(START, "advance")
    graph.add_edge("advance", END, when=lambda state: state["n"] >= steps)
    graph.add_edge("advance", "advance")
    return graph


# -- sending and receiving, on both databases

Place = Callable[[Callable[[str], float]], float]
"""Calls a function with the URL of a new store."""


def _costs(
    kind: str,
    size: Size,
    place: Place,
    rows_of: Callable[[str], list[Row]],
    insert: Callable[[str, list[Row]], float],
) -> dict[str, float]:
    rows: list[Row] = []

    def sent_rows(url: str) -> float:
        took = sent(size.messages, url)
        rows[:] = rows_of(url)
        return took

    def inserted(url: str) -> float:
        find_store(url).close()
        return insert(url, rows)

    place(sent_rows)
    peers = [
        Peer("send", lambda: place(partial(sent, size.messages))),
        Peer("insert", lambda: place(inserted)),
        Peer("receive", lambda: place(partial(received, size.messages))),
        Peer("step", lambda: place(partial(stepped, size.messages))),
    ]
    best = best_of(size.rounds, peers)
    return {
        f"send_vs_insert_{kind}": best["send"] / best["insert"],
        f"receive_vs_step_{kind}": best["receive"] / best["step"],
    }


def sent(messages: int, url: str) -> float:
    """The seconds of so many messages to one thread."""
    with closing(_loop(1, receives=True).compile(store=url)) as app:
        app.submit({"n": 0}, "before")
        app.submit({"n": 0}, "t")
        for _ in range(_WARM):
            app.send("before", 1, TOPIC)
        began = perf_counter()
        for _ in range(messages):
            app.send("t", 1, TOPIC)
        return perf_counter() - began


def received(messages: int, url: str) -> float:
    """The seconds of a loop that receives a message in each step; they are there before."""
    with closing(_loop(messages, receives=True).compile(store=url)) as app:
        _receive_all(app, "before", _WARM, goal=messages)
        return _receive_all(app, "t", messages, goal=messages)


def _receive_all(app: App[Count], thread: str, messages: int, goal: int) -> float:
    app.invoke({"n": goal - messages}, thread)
    for _ in range(messages):
        app.send(thread, 1, TOPIC)
    began = perf_counter()
    result = app.resume(thread)
    took = perf_counter() - began
    if result.status != "completed" or app.mailbox(thread):
        raise AssertionError(f"the run is {result.status}")
    return took


def stepped(steps: int, url: str) -> float:
    """The seconds of a loop of as many steps."""
    with closing(_loop(steps, receives=False).compile(store=url)) as app:
        app.invoke({"n": steps - _WARM}, "before")
        began = perf_counter()
        app.invoke({"n": 0}, "t")
        return perf_counter() - began


def _in_folder(folder: Path, work: Callable[[str], float]) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return work(f"sqlite:///{Path(name) / DATABASE}?synchronous=full")


def _sqlite_path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///").partition("?")[0])


def sqlite_rows(url: str) -> list[Row]:
    """The mailbox, without the generated column, which is the last."""
    return [row[:-1] for row in bare.sqlite_rows(_sqlite_path(url), "mailbox")]


def _sqlite_bare(url: str, rows: list[Row]) -> float:
    return bare.sqlite_inserts_with_room(_sqlite_path(url), rows, "mailbox")


def _in_schema(cluster: Cluster, work: Callable[[str], float]) -> float:
    with fresh_schema(cluster) as schema:
        return work(cluster.url_of(schema))


def _postgres_rows(cluster: Cluster, url: str) -> list[Row]:
    return bare.postgres_rows(cluster.url, _schema_of(url), "mailbox")


def _postgres_bare(cluster: Cluster, url: str, rows: list[Row]) -> float:
    return bare.postgres_inserts(cluster.url, _schema_of(url), rows, table="mailbox")


def _schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]


# -- waking


async def _waking(cluster: Cluster, size: Size) -> dict[str, float]:
    """The best medians, in milliseconds, of messages and submits that take turns."""
    rounds = [await _pings(cluster, size.pings) for _ in range(max(2, size.rounds // 2))]
    wake, submit = (min(each) for each in zip(*rounds, strict=True))
    return {"wake_ms": wake * 1000, "wake_ms_vs_submit": wake / submit}


async def _pings(cluster: Cluster, count: int) -> tuple[float, float]:
    with fresh_schema(cluster) as schema, closing(PostgresStore(cluster.url_of(schema))) as store:
        started = asyncio.Event()
        waiting, plain = (_ping(store, started, receives=each) for each in (True, False))
        worker = Worker([waiting, plain])
        serving = asyncio.create_task(worker.run())
        await worker.entered.wait()
        wakes: list[float] = []
        submits: list[float] = []
        for number in range(count):
            thread = f"{number}"
            handle = await waiting.asubmit({"n": 0}, thread)
            await handle.aresult()
            wakes.append(await _until_started(started, waiting.asend(thread, 1, TOPIC)))
            submits.append(
                await _until_started(started, plain.asubmit({"n": 0}, f"plain {thread}"))
            )
        worker.stop()
        await serving
        return median(wakes), median(submits)


async def _until_started(started: asyncio.Event, call: Awaitable[object]) -> float:
    """The seconds from a call to what it starts, on a worker that has been idle for a moment."""
    await asyncio.sleep(0.05)
    started.clear()
    began = perf_counter()
    await call
    await started.wait()
    return perf_counter() - began


def _ping(store: PostgresStore, started: asyncio.Event, *, receives: bool) -> App[Count]:
    graph: StateGraph[Count] = StateGraph(Count, name="waiting" if receives else "plain")

    @graph.node
    async def answer(state: Count, ctx: Context) -> dict[str, Any]:
        if receives:
            await ctx.areceive(TOPIC)
        started.set()
        return {}

    graph.add_edges(START, "answer", END)
    return graph.compile(store=store)


# -- beside DBOS


def _beside_dbos(cluster: Cluster, size: Size) -> dict[str, float]:
    ours: list[Sequence[float]] = []
    theirs: list[Sequence[float]] = []
    for _ in range(size.peer_rounds):
        ours.append(_in_threads(cluster, size))
        theirs.append(_dbos(cluster, size))
    send, receive = (min(each) for each in zip(*ours, strict=True))
    their_send, their_receive = (min(each) for each in zip(*theirs, strict=True))
    return {
        "vs_dbos": (their_send + their_receive) / (send + receive),
        "send_vs_dbos": their_send / send,
        "receive_vs_dbos": their_receive / receive,
    }


def _in_threads(cluster: Cluster, size: Size) -> tuple[float, float]:
    """The seconds of sending to each thread, and of its run, which receives."""
    with fresh_schema(cluster) as schema:
        graph, took = _loop(size.each, receives=True), [0.0, 0.0]
        with closing(graph.compile(store=cluster.url_of(schema))) as app:
            for number in range(size.threads + 1):
                thread = f"{number}"
                app.invoke({"n": 0}, thread)
                began = perf_counter()
                for _ in range(size.each):
                    app.send(thread, 1, TOPIC)
                between = perf_counter()
                app.resume(thread)
                if number:
                    took[0] += between - began
                    took[1] += perf_counter() - between
        return took[0], took[1]


def _dbos(cluster: Cluster, size: Size) -> Sequence[float]:
    command = [sys.executable, "-m", "benchmarks.dbos_messages", cluster.url]
    command += [str(size.threads), str(size.each)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return [float(seconds) for seconds in done.stdout.split()[-2:]]
