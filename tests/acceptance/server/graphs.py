"""A graph for servers and workers, imported by them as ``tests.acceptance.server.graphs:graph``.

It walks as many steps as it is asked to, emits on the way, and then ends, asks or fails.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NotRequired, TypedDict

from milecastle import END, START, Context, ExecutionConfig, StateGraph, append, interrupt


class Journey(TypedDict):
    steps: int
    done: int
    pause: NotRequired[float]
    weight: NotRequired[int]
    then: NotRequired[str]
    log: Annotated[list[str], append]


async def walk(state: Journey, ctx: Context) -> dict[str, Any]:
    await ctx.aemit(state["done"])
    await asyncio.sleep(state.get("pause", 0.0))
    return {"done": state["done"] + 1, "log": ["x" * state.get("weight", 0)]}


def ask(state: Journey) -> dict[str, Any]:
    if not interrupt("go on?", answer=bool):
        raise RuntimeError("no")
    return {"log": ["asked"]}


def fail(state: Journey) -> dict[str, Any]:
    raise RuntimeError("no way")


def where(state: Journey) -> str:
    return "walk" if state["done"] < state["steps"] else state.get("then", "end")


def build() -> StateGraph[Journey]:
    graph: StateGraph[Journey] = StateGraph(Journey, name="journey")
    graph.add_node("walk", walk)
    graph.add_node("ask", ask)
    graph.add_node("fail", fail)
    graph.add_edge(START, "walk")
    targets = {"walk": "walk", "ask": "ask", "fail": "fail", "end": END}
    graph.add_conditional_edges("walk", where, targets)
    graph.add_edge("ask", END).add_edge("fail", END)
    return graph.with_default_config(ExecutionConfig(max_steps=None))


def journey(steps: int, **more: Any) -> dict[str, Any]:
    """The body of a request for a run."""
    return {"input": {"steps": steps, "done": 0, "log": [], **more}}


graph = build()
