"""The loop in Milecastle, cycle detection on as by default."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Annotated, TypedDict

from benchmarks.bare import Clock
from benchmarks.loop import text, verify
from milecastle import END, START, App, ExecutionOptions, Observer, StateGraph, append

THREAD = "loop"


class LoopState(TypedDict):
    """The state of the loop."""

    n: int
    items: Annotated[list[str], append]


def advance(state: LoopState) -> LoopState:
    """Do one step."""
    n = state["n"]
    return {"n": n + 1, "items": [text(n)]}


async def advance_async(state: LoopState) -> LoopState:
    """Do one step, as a coroutine."""
    return advance(state)


def compile_loop(
    steps: int,
    *,
    store: str | None = None,
    is_async: bool = False,
    observers: Sequence[Observer] = (),
) -> App[LoopState]:
    """Return the loop, ready to run."""

    def route(state: LoopState) -> str:
        return "advance" if state["n"] < steps else END

    graph = StateGraph(LoopState)
    graph.add_node("advance", advance_async if is_async else advance)
    graph.add_edge(START, "advance")
    graph.add_conditional_edges("advance", route, ["advance", END])
    return graph.compile(store=store, observers=observers)


def no_store(steps: int, clock: Clock = perf_counter) -> float:
    """Return the seconds of the loop without a store."""
    return _timed(compile_loop(steps), steps, clock)


def memory(steps: int, clock: Clock = perf_counter) -> float:
    """Return the seconds of the loop that commits each step to a memory store."""
    return _timed(compile_loop(steps, store="memory://"), steps, clock)


def async_no_store(steps: int) -> float:
    """Return the seconds of the loop in a running event loop, keeping nothing."""
    return asyncio.run(_timed_async(compile_loop(steps, is_async=True), steps))


def run(app: App[LoopState], steps: int, *, thread: str = THREAD) -> LoopState:
    """Do the loop and return its last state."""
    options = ExecutionOptions(max_steps=steps)
    return app.invoke({"n": 0, "items": []}, thread=thread, options=options).state


async def run_async(app: App[LoopState], steps: int) -> LoopState:
    """Do the loop as a coroutine and return its last state."""
    options = ExecutionOptions(max_steps=steps)
    return (await app.ainvoke({"n": 0, "items": []}, thread=THREAD, options=options)).state


def _timed(app: App[LoopState], steps: int, clock: Clock) -> float:
    start = clock()
    state = run(app, steps)
    seconds = clock() - start
    verify(state, steps)
    return seconds


async def _timed_async(app: App[LoopState], steps: int) -> float:
    start = perf_counter()
    state = await run_async(app, steps)
    seconds = perf_counter() - start
    verify(state, steps)
    return seconds
