"""A node that raises what Python uses to end iterators fails its run, on a thread and on a loop."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest

from milecastle import END, START, App, Context, ExecutionError, StateGraph, Timeout
from milecastle.stores.memory import MemoryStore


class State(TypedDict, total=False):
    found: str


def app_of(kind: type[BaseException], form: str) -> App[State]:
    graph: StateGraph[State] = StateGraph(State)

    def plain(state: State) -> dict[str, Any]:
        raise kind

    def with_context(state: State, ctx: Context) -> dict[str, Any]:
        raise kind

    async def awaited(state: State) -> dict[str, Any]:
        await asyncio.sleep(0)
        raise kind

    async def awaited_with_context(state: State, ctx: Context) -> dict[str, Any]:
        raise kind

    if form == "plain":
        graph.add_node("pick", plain)
    elif form == "async":
        graph.add_node("pick", awaited)
    elif form == "async context":
        graph.add_node("pick", awaited_with_context)
    elif form == "async timeout":
        graph.add_node("pick", awaited, timeout=Timeout(run=60))
    elif form == "context":
        graph.add_node("pick", with_context)
    elif form == "timeout":
        graph.add_node("pick", plain, timeout=Timeout(run=60))
    else:
        graph.add_node("pick", plain, inline=True)
    graph.add_edges(START, "pick", END)
    return graph.compile(store=MemoryStore())


@pytest.mark.parametrize(
    "form",
    ["plain", "context", "timeout", "inline", "async", "async context", "async timeout"],
)
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
def test_what_ends_iterators_fails_a_run(kind: type[BaseException], way: str, form: str) -> None:
    """Failed: on a loop the run never ended, and GeneratorExit looked like a closed stream.

    An async node that raised it was cancelled.
    """
    app = app_of(kind, form)

    def call() -> None:
        if way == "invoke":
            app.invoke({}, "a")
        else:
            asyncio.run(asyncio.wait_for(app.ainvoke({}, "a"), 20))

    with pytest.raises(ExecutionError, match=kind.__name__):
        call()
    assert app.state("a").status == "failed"
