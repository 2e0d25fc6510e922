"""Graphs for workers, and ways to run workers inside a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from milecastle import END, START, App, StateGraph, Store, append
from milecastle.fleet.worker import Worker, WorkerOptions

Node = Callable[..., Any]

QUICK = WorkerOptions(concurrency=20, poll=0.05, heartbeat=0.2, silent_after=30.0, grace=30.0)
"""For tests of anything but silence: a busy machine may stop a worker for seconds."""
STRICT = QUICK.replaced(silent_after=2.5)
"""For tests of silence."""


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


def note(name: str) -> Node:
    """A node that leaves its name."""

    def noted(state: Trip) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [name]}

    return noted


def line(
    store: Store | None, *nodes: tuple[str, Node], name: str = "line", **options: Any
) -> App[Trip]:
    """Nodes one after the other."""
    graph: StateGraph[Trip] = StateGraph(Trip, name=name)
    before = START
    for node, function in nodes:
        graph.add_node(node, function)
        graph.add_edge(before, node)
        before = node
    graph.add_edge(before, END)
    return graph.compile(store=store, **options)


def start() -> dict[str, Any]:
    return {"n": 0, "log": []}


@asynccontextmanager
async def serving(*apps: App[Any], options: WorkerOptions = QUICK) -> AsyncGenerator[Worker, None]:
    """A worker that serves until the block ends, and then drains."""
    worker = Worker(apps, options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


def work(*apps: App[Any]) -> None:
    """Run everything that is due now."""
    asyncio.run(Worker(apps, QUICK).run_until_idle())


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Wait for something that another task brings about."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - nothing tells a test
            await asyncio.sleep(0.02)
