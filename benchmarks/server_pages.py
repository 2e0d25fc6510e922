"""What pages of the server cost as stores grow, on SQLite.

Figures are ratios of the server's time for one request, large to small; at most 2 is wanted:

- ``thread_page_growth``: the page of a thread of 10,000 checkpoints, to one of 100; at its head or
  in its middle, whichever grows more.
- ``list_page_growth``: the list of threads among 1,000,000, to one among 1,000; its first page, by
  status, or from the middle on, whichever grows more.
- ``fan_out_page_growth``: the page of a thread with a fan-out of 10,000 items, to 100; while one
  item waits for an answer, or when all are done, whichever grows more.
- ``overview_growth``: the overview's document for 1,000,000 threads, each with a run, to 1,000; in
  both a thousand runs began in the last hour, and the newest hundred failed.

``overview_ms`` is the milliseconds that document takes for 1,000 threads; ``thread_page_ms`` and
``list_page_ms`` those of the small pages above (at most 50 are wanted), and ``thread_page_kb`` and
``list_page_kb`` their HTML (at most 180 and 60, of ordinary threads). The other requests are
given to the application in this process: there is no network in the figures.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from benchmarks.alternating import best_of, timed
from milecastle import END, START, App, ExecutionOptions, Send, StateGraph, interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.run import FAILED_NODE, FAILED_TYPE, RunRecord, RunStatus, ThreadInfo
from milecastle.server.access import Access
from milecastle.server.application import Application
from milecastle.server.identity import ALL_SCOPES, Identity
from milecastle.server.service import Service
from milecastle.stores.sqlite.rows import ThreadRow, run_row, summed, thread_values
from milecastle.stores.sqlite.store import SqliteStore
from milecastle.views.node_statistics import StatisticsCache
from milecastle.views.overview import overview_document

_TOKEN = "benchmark" * 4
_INSERT = """
INSERT INTO threads (
    id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank, waiting_topics, limit_key, messages, unread,
    sum, changed
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
"""Lines of threads, many at once: a commit for each would take minutes."""
_INSERT_RUN = """
INSERT INTO runs (
    thread, run_id, started_at, graph, fingerprint, mode, status, retry_count, previous_run_id,
    ended_at, input_digest, metadata, wake_at, owner, sum, number, tenant, place
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: small and large of each, and rounds."""

    checkpoints: tuple[int, int] = (100, 10_000)
    threads: tuple[int, int] = (1_000, 1_000_000)
    items: tuple[int, int] = (100, 10_000)
    rounds: int = 15


QUICK = Scale(checkpoints=(100, 1_000), threads=(1_000, 20_000), items=(100, 1_000), rounds=5)


class Count(TypedDict):
    """A number, which nodes add to."""

    n: Annotated[int, add]


def pages(*, quick: bool = False) -> Mapping[str, float]:
    """The figures."""
    scale = QUICK if quick else Scale()
    return {
        "thread_page_growth": _growth(_thread, scale.checkpoints, scale.rounds),
        "list_page_growth": _growth(_list, scale.threads, scale.rounds),
        "fan_out_page_growth": _growth(_fan_out, scale.items, scale.rounds),
        **_overview(scale.threads, scale.rounds),
        **_budget("thread_page", _thread, scale.checkpoints[0], scale.rounds),
        **_budget("list_page", _list, scale.threads[0], scale.rounds),
    }


class Pages:
    """The server of an app, asked in this process."""

    def __init__(self, app: App[Count], paths: tuple[str, ...]) -> None:
        access = Access([(_TOKEN, Identity("default", ALL_SCOPES))])
        self._application = Application(Service([app], worker=False), access)
        self._runner = asyncio.Runner()
        self.paths = paths

    def ask(self, number: int) -> int:
        """Ask for one of the pages; it must come. Return its bytes."""
        path, _, query = self.paths[number].partition("?")
        status, size = self._runner.run(self._ask(path, query))
        if status != 200:
            raise AssertionError(f"{path} was answered with {status}")
        return size

    async def _ask(self, path: str, query: str) -> tuple[int, int]:
        headers = {"host": "localhost", "accept": "text/html", "authorization": f"Bearer {_TOKEN}"}
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }
        statuses, sizes = list[int](), list[int]()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            else:
                sizes.append(len(message.get("body", b"")))

        await self._application(scope, receive, send)
        return statuses[0], sum(sizes)

    def close(self) -> None:
        """Close the event loop."""
        self._runner.close()


def _growth(build: Any, sizes: tuple[int, int], rounds: int) -> float:
    """The greatest ratio over the pages of a kind."""
    with ExitStack() as stack:
        small, large = (stack.enter_context(_built(build, size)) for size in sizes)
        found: list[float] = []
        for number in range(len(small.paths)):
            peers = [
                timed("small", partial(small.ask, number), repeats=3),
                timed("large", partial(large.ask, number), repeats=3),
            ]
            best = best_of(rounds, peers)
            found.append(best["large"] / best["small"])
    return max(found)


def _budget(name: str, build: Any, size: int, rounds: int) -> Mapping[str, float]:
    """The milliseconds and the kilobytes of the first page of a kind."""
    with _built(build, size) as pages:
        kilobytes = pages.ask(0) / 1000
        best = best_of(rounds, [timed("page", partial(pages.ask, 0), repeats=3)])
    return {f"{name}_ms": best["page"] * 1000, f"{name}_kb": kilobytes}


@contextmanager
def _built(build: Any, size: int) -> Generator[Pages, None, None]:
    with tempfile.TemporaryDirectory() as folder:
        app, paths = build(SqliteStore(Path(folder) / "runs.db"), size)
        found = Pages(app, paths)
        try:
            yield found
        finally:
            found.close()
            app.store.close()


def _thread(store: SqliteStore, checkpoints: int) -> tuple[App[Count], tuple[str, ...]]:
    """A thread of so many checkpoints."""
    graph: StateGraph[Count] = StateGraph(Count, name="loop")
    graph.add_node("count", lambda _: {"n": 1})
    graph.add_edge(START, "count")
    graph.add_conditional_edges(
        "count", lambda state: "count" if state["n"] < checkpoints else END, ["count", END]
    )
    app = graph.compile(store=store)
    app.invoke({"n": 0}, "t", options=ExecutionOptions(max_steps=checkpoints))
    return app, ("/threads/t", f"/threads/t?at={checkpoints // 2}")


def _list(store: SqliteStore, threads: int) -> tuple[App[Count], tuple[str, ...]]:
    """So many threads, of which every tenth has failed; only their lines are written."""
    graph: StateGraph[Count] = StateGraph(Count, name="one")
    graph.add_node("one", lambda _: {"n": 1})
    graph.add_edges(START, "one", END)
    app = graph.compile(store=store)
    app.threads()  # creates the tables
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.executemany(_INSERT, (_row(number) for number in range(1, threads + 1)))
    middle = f"{threads // 2:08}"
    return app, ("/threads", "/threads?status=failed", f"/threads?sort=name&after={middle}")


def _row(number: int, failed: bool | None = None) -> tuple[Any, ...]:
    """The line of a thread as the store writes it, and its place among the changes."""
    key = ThreadKey("default", f"{number:08}")
    failed = number % 10 == 0 if failed is None else failed
    status: RunStatus = "failed" if failed else "completed"
    info = ThreadInfo(
        key=key, status=status, run_id="r", graph="one", started_at=number, ended_at=number
    )
    return (*summed(thread_values(ThreadRow(id=number, key=key, info=info))), number)


def _overview(sizes: tuple[int, int], rounds: int) -> Mapping[str, float]:
    """The overview of a small and of a large store. Statistics of nodes are remembered."""
    with ExitStack() as stack:
        asks = [stack.enter_context(_overview_of(size)) for size in sizes]
        peers = [
            timed(name, ask, repeats=1) for name, ask in zip(("small", "large"), asks, strict=True)
        ]
        best = best_of(rounds, peers)
    return {
        "overview_growth": best["large"] / best["small"],
        "overview_ms": best["small"] * 1000,
    }


@contextmanager
def _overview_of(threads: int) -> Generator[Callable[[], None], None, None]:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "runs.db")
        _list(store, 0)
        now = time.time_ns() // 1000
        with closing(sqlite3.connect(store.path)) as connection, connection:
            numbers = range(1, threads + 1)
            connection.executemany(_INSERT, (_row(one, one > threads - 100) for one in numbers))
            connection.executemany(_INSERT_RUN, (_run_row(one, threads, now) for one in numbers))
        statistics = StatisticsCache(store)

        def ask() -> None:
            overview_document(store, "default", statistics, now=now)

        ask()
        try:
            yield ask
        finally:
            store.close()


def _run_row(number: int, threads: int, now: int) -> tuple[Any, ...]:
    """The run of a thread; the newest thousand began in the last hour."""
    age = 1_000_000 * (threads - number) * (3 if number > threads - 1000 else 300)
    failed = number > threads - 100
    run = RunRecord(
        run_id="r",
        key=ThreadKey("default", f"{number:08}"),
        graph="one",
        fingerprint="f" * 32,
        mode="incremental",
        status="failed" if failed else "completed",
        retry_count=0,
        previous_run_id=None,
        started_at=now - age,
        ended_at=now - age,
        metadata={"host": "h", **({FAILED_TYPE: "E", FAILED_NODE: "one"} if failed else {})},
    )
    return (*run_row(number, run), 1, "default", number)


def _fan_out(store: SqliteStore, items: int) -> tuple[App[Count], tuple[str, ...]]:
    """A thread that waits in a fan-out, where one item asks, and one that is over it."""

    def work(state: Any) -> dict[str, Any]:
        return {"n": interrupt("go on?", answer=int) if state["n"] == 0 else 1}

    graph: StateGraph[Count] = StateGraph(Count, name="fan")
    graph.add_node("begin", lambda _: {"n": 0})
    graph.add_node("work", work)
    graph.add_edge(START, "begin")
    graph.add_conditional_edges(
        "begin", lambda _: [Send("work", {"n": number}) for number in range(items)], ["work"]
    )
    graph.add_edge("work", END)
    app = graph.compile(store=store)
    for thread in ("waits", "done"):
        app.invoke({"n": 0}, thread)
    app.resume("done", answer=1)
    return app, ("/threads/waits", "/threads/done")
