"""The loop in LangGraph, as its documentation would have it written.

Its durability is left at its default. The asynchronous loop has an asynchronous router, because
LangGraph sends a plain one to a thread, which was measured a third slower or worse.
"""

from __future__ import annotations

import asyncio
import operator
from importlib import import_module
from time import perf_counter
from typing import Annotated, Any, TypedDict

from benchmarks.loop import text, verify

# By name, so that the type checks pass alike with and without the peer.
langgraph = import_module("langgraph.graph")
checkpoints = import_module("langgraph.checkpoint.memory")

START: str = langgraph.START
END: str = langgraph.END
THREAD = "loop"


class LoopState(TypedDict):
    """The state of the loop."""

    n: int
    items: Annotated[list[str], operator.add]


def advance(state: LoopState) -> LoopState:
    """Do one step."""
    n = state["n"]
    return {"n": n + 1, "items": [text(n)]}


async def advance_async(state: LoopState) -> LoopState:
    """Do one step, as a coroutine."""
    return advance(state)


def compile_loop(steps: int, *, saver: Any = None, is_async: bool = False) -> Any:
    """Return the loop, ready to run."""

    def route(state: LoopState) -> str:
        return "advance" if state["n"] < steps else END

    async def route_async(state: LoopState) -> str:
        return route(state)

    graph = langgraph.StateGraph(LoopState)
    graph.add_node("advance", advance_async if is_async else advance)
    graph.add_edge(START, "advance")
    graph.add_conditional_edges("advance", route_async if is_async else route, ["advance", END])
    return graph.compile(checkpointer=saver)


def no_store(steps: int) -> float:
    """Return the seconds of the loop without a store."""
    return _timed(compile_loop(steps), steps)


def memory(steps: int) -> float:
    """Return the seconds of the loop that saves each step to a memory saver."""
    return _timed(compile_loop(steps, saver=checkpoints.InMemorySaver()), steps)


def async_no_store(steps: int) -> float:
    """Return the seconds of the loop in a running event loop, keeping nothing."""
    return asyncio.run(_timed_async(compile_loop(steps, is_async=True), steps))


def run(app: Any, steps: int) -> LoopState:
    """Do the loop and return its last state."""
    state: LoopState = app.invoke({"n": 0, "items": []}, _config(steps))
    return state


async def run_async(app: Any, steps: int) -> LoopState:
    """Do the loop as a coroutine and return its last state."""
    state: LoopState = await app.ainvoke({"n": 0, "items": []}, _config(steps))
    return state


def _config(steps: int) -> dict[str, object]:
    return {"recursion_limit": steps + 1, "configurable": {"thread_id": THREAD}}


def _timed(app: Any, steps: int) -> float:
    start = perf_counter()
    state = run(app, steps)
    seconds = perf_counter() - start
    verify(state, steps)
    return seconds


async def _timed_async(app: Any, steps: int) -> float:
    start = perf_counter()
    state = await run_async(app, steps)
    seconds = perf_counter() - start
    verify(state, steps)
    return seconds
