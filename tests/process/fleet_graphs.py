"""Graphs that a fleet runs while it is disturbed, and how each of their runs must end.

Imported by workers as ``tests.process.fleet_graphs:app``; the store is that of ``--store``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from milecastle import END, START, App, Context, Retry, Send, StateGraph, append, interrupt

ITEMS = 4
BLOCKED = 7.0


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


class Item(TypedDict):
    n: int
    log: Annotated[list[str], append]


def first(state: Trip) -> dict[str, Any]:
    time.sleep(0.05)
    return {"n": state["n"] + 1, "log": ["first"]}


def spread(state: Trip) -> list[Send]:
    return [Send("item", {"n": index, "log": []}) for index in range(ITEMS)]


def item(state: Item) -> dict[str, Any]:
    time.sleep(0.01)
    return {"log": [f"item {state['n']}"]}


def join(state: Trip) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": ["join"]}


def nap(state: Trip, ctx: Context) -> dict[str, Any]:
    ctx.sleep(0.2)
    return {"log": ["nap"]}


def flaky(state: Trip, ctx: Context) -> dict[str, Any]:
    if ctx.attempt == 1:
        raise ConnectionError("on purpose")
    return {"log": ["flaky"]}


def ask(state: Trip) -> dict[str, Any]:
    return {"log": [f"heard {interrupt('well?')}"]}


def record(state: Trip, ctx: Context) -> dict[str, Any]:
    return {"log": [ctx.once("look", lambda: "seen")]}


def _tell_start() -> None:
    with Path(os.environ["MILECASTLE_TEST_STARTS"]).open("a", encoding="utf-8") as starts:
        starts.write("began\n")


async def block(state: Trip) -> dict[str, Any]:
    """A node that blocks the event loop of its worker, and says that it began."""
    _tell_start()
    time.sleep(BLOCKED)  # noqa: ASYNC251 - on purpose
    return {"n": state["n"] + 1}


def inner(state: Trip) -> dict[str, Any]:
    return {"log": ["inner"]}


def last(state: Trip) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": ["last"]}


def below() -> App[Trip]:
    """A subgraph of two steps."""
    graph: StateGraph[Trip] = StateGraph(Trip, name="below")
    graph.add_node("inner", inner)
    graph.add_node("again", inner)
    graph.add_edge(START, "inner").add_edge("inner", "again").add_edge("again", END)
    return graph.compile()


def build() -> StateGraph[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip, name="mixed")
    graph.add_node("first", first)
    graph.add_node("item", item)
    graph.add_node("join", join)
    graph.add_node("nap", nap)
    graph.add_node("flaky", flaky, retry=Retry(attempts=50, delay=0.01))
    graph.add_node("ask", ask)
    graph.add_node("record", record)
    graph.add_node("below", below(), give=_give, take=_take)
    graph.add_node("last", last)
    graph.add_edge(START, "first")
    graph.add_conditional_edges("first", spread, ["item"])
    graph.add_edge("item", "join")
    for before, after in (
        ("join", "nap"),
        ("nap", "flaky"),
        ("flaky", "ask"),
        ("ask", "record"),
        ("record", "below"),
        ("below", "last"),
    ):
        graph.add_edge(before, after)
    graph.add_edge("last", END)
    return graph


def _give(state: Trip) -> dict[str, Any]:
    return {"n": state["n"], "log": []}


def _take(state: Trip) -> dict[str, Any]:
    return {"log": state["log"]}


def start(number: int) -> dict[str, Any]:
    return {"n": number, "log": []}


def end(number: int) -> dict[str, Any]:
    """How a run must end, whatever happened to its workers."""
    items = [f"item {index}" for index in range(ITEMS)]
    log = ["first", *items, "join", "nap", "flaky", "heard yes", "seen", "inner", "inner", "last"]
    return {"n": number + 3, "log": log}


def build_blocking() -> StateGraph[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip, name="blocking")
    graph.add_node("block", block)
    graph.add_edges(START, "block", END)
    return graph


app = build()
blocking = build_blocking()
