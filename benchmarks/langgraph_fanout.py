"""The fan-out in LangGraph: a ``Send`` for each item, its SQLite saver, ``durability="sync"``."""

from __future__ import annotations

import operator
import sqlite3
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any, TypedDict

from benchmarks.items import work

# By name, so that the type checks pass alike with and without the peer.
langgraph = import_module("langgraph.graph")
types = import_module("langgraph.types")
savers = import_module("langgraph.checkpoint.sqlite")


class Work(TypedDict, total=False):
    """The state of the fan-out."""

    numbers: list[int]
    found: Annotated[list[dict[str, Any]], operator.add]


def split(state: Work) -> None:
    """Nothing to do: what follows is sent."""


def send(state: Work) -> list[Any]:
    """One task for each number."""
    return [types.Send("item", {"number": number}) for number in state.get("numbers", [])]


def item(state: dict[str, int]) -> Work:
    """One item."""
    return {"found": [work(state["number"])]}


def fan_out(items: int) -> float:
    """Seconds of LangGraph's fan-out."""
    graph = langgraph.StateGraph(Work)
    graph.add_node("split", split)
    graph.add_node("item", item)
    graph.add_edge(langgraph.START, "split")
    graph.add_conditional_edges("split", send, ["item"])
    graph.add_edge("item", langgraph.END)
    with TemporaryDirectory(dir=Path.cwd()) as folder:
        database = sqlite3.connect(Path(folder, "fanout.db"), check_same_thread=False)
        app = graph.compile(checkpointer=savers.SqliteSaver(database))
        config = {"configurable": {"thread_id": "fanout"}}
        start = perf_counter()
        state = app.invoke({"numbers": list(range(items))}, config, durability="sync")
        seconds = perf_counter() - start
        database.close()
    if len(state["found"]) != items:
        raise AssertionError("the fan-out lost an item")
    return seconds
