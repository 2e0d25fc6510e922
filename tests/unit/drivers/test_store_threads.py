"""On an event loop a store that may wait has its own threads: it never waits for sync nodes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, ExecutionConfig, Send, StateGraph, append
from milecastle.stores.jsonl import JsonlStore

MOST = 2
"""So many sync nodes run at once: as many as the run has threads for them."""


class State(TypedDict):
    log: Annotated[list[str], append]


class Hold:
    """Sync nodes that stay until they may go."""

    def __init__(self) -> None:
        self.here = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self, state: State) -> dict[str, Any]:
        self.here.release()
        self.go.wait(60)
        return {"log": ["hold"]}

    async def all_here(self) -> None:
        for _ in range(MOST):
            await asyncio.to_thread(self.here.acquire)


def holding(hold: Hold, store: JsonlStore) -> App[State]:
    def split(state: State) -> list[Send]:
        return [Send("hold", {"log": []}) for _ in range(2 * MOST)]

    def begin(state: State) -> dict[str, Any]:
        return {"log": ["begin"]}

    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("begin", begin)
    graph.add_node("hold", hold)
    graph.add_edge(START, "begin")
    graph.add_conditional_edges("begin", split, ["hold"])
    graph.add_edge("hold", END)
    graph.with_default_config(ExecutionConfig(max_parallel=MOST))
    return graph.compile(store=store)


def test_a_cancellation_is_recorded_while_sync_nodes_have_every_thread(tmp_path: Path) -> None:
    hold, store = Hold(), JsonlStore(tmp_path)
    app = holding(hold, store)

    async def cancelled_at_once() -> bool:
        running = asyncio.create_task(app.ainvoke({"log": []}, "t"))
        await hold.all_here()
        running.cancel()
        await asyncio.wait({running}, timeout=60)
        ended = running.cancelled()
        hold.go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        return ended

    try:
        assert asyncio.run(cancelled_at_once())
    finally:
        hold.go.set()
    assert app.state("t").status == "cancelled"


def test_the_threads_of_the_store_end_with_the_run(tmp_path: Path) -> None:
    hold, store = Hold(), JsonlStore(tmp_path)
    hold.go.set()
    asyncio.run(holding(hold, store).ainvoke({"log": []}, "t"))
    for thread in threading.enumerate():
        if thread.name.startswith("milecastle-store"):
            thread.join(5)
            assert not thread.is_alive()
