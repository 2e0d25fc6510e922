"""What a run leaves behind: nothing that waits for the garbage collector.

A run that is in a circle keeps its state in memory until the collector comes, and lets it look at
everything more often: a worker spent an eighth of its processor time on that.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

from milecastle import END, START, App, Context, StateGraph
from milecastle.fleet.worker import Worker

RUNS = 5
PARTS = {
    "PlannedRun",
    "RunPlan",
    "Run",
    "RunTaskPort",
    "Advance",
    "Step",
    "Position",
    "NodeCaller",
    "_Threads",
    "Drive",
    "LoopTasks",
    "_Segment",
}
"""Of each run there is one of these, at most."""


class Count(TypedDict):
    n: int


def _graph(kind: str) -> StateGraph[Count]:
    graph: StateGraph[Count] = StateGraph(Count, name="count")

    def add(state: Count) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    def add_once(state: Count, ctx: Context) -> dict[str, Any]:
        return {"n": ctx.once("add", lambda: state["n"] + 1)}

    async def add_async(state: Count) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    kinds: dict[str, Callable[..., Any]]
    kinds = {"plain": add, "recording": add_once, "async": add_async}
    graph.add_node("add", kinds[kind])
    graph.add_edges(START, "add", END)
    return graph


def _left_by(run: Callable[[str], object]) -> set[str]:
    """What of each run only the collector frees. Other tests leave other things."""
    run("warm")
    gc.collect()
    gc.disable()
    try:
        for number in range(RUNS):
            run(f"{number}")
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(type(found).__qualname__ for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return {name for name in PARTS if left[name] >= RUNS}


@pytest.mark.parametrize("store", ["no store", "memory", "sqlite"])
@pytest.mark.parametrize("kind", ["plain", "recording", "async"])
def test_a_run_leaves_no_circle(kind: str, store: str, tmp_path: Path) -> None:
    """Fails if the host keeps the ports of a run that has stopped, if the calls of a run keep its
    last place, or, for async nodes, if they keep the executor, or a drive its own commit."""
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'runs.db'}"}
    app: App[Count] = _graph(kind).compile(store=urls.get(store))
    if store == "no store":
        assert not _left_by(lambda thread: app.invoke({"n": 0}))
    else:
        assert not _left_by(lambda thread: app.invoke({"n": 0}, thread))


def test_a_segment_of_a_worker_leaves_no_circle(tmp_path: Path) -> None:
    """Fails if a segment that has ended keeps its plan: the assignment in it knows the segment."""
    app = _graph("async").compile(store=f"sqlite:///{tmp_path / 'runs.db'}")
    workers: list[Worker] = []

    def run(thread: str) -> None:
        app.submit({"n": 0}, thread)
        workers.append(Worker([app]))  # kept, so that only what its runs leave is counted
        asyncio.run(workers[-1].run_until_idle())

    assert not _left_by(run)
