"""A graph whose node does to its worker what the input says.

Imported by workers as ``tests.process.fleet_hostile:app``; the store is that of ``--store``.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Any, TypedDict

from milecastle import END, START, StateGraph, append


class Deed(TypedDict):
    do: str
    log: Annotated[list[str], append]


def first(state: Deed) -> dict[str, Any]:
    return {"log": ["first"]}


def hostile(state: Deed) -> dict[str, Any]:
    if state["do"] == "exit":
        time.sleep(0.5)  # until what runs beside it has begun
        os._exit(9)
    if state["do"] == "slow":
        time.sleep(1.5)
    if state["do"] == "block":
        time.sleep(60)
    return {"log": ["done"]}


def build() -> StateGraph[Deed]:
    graph: StateGraph[Deed] = StateGraph(Deed, name="hostile")
    graph.add_node("hostile", hostile)
    graph.add_node("first", first)
    graph.add_edge(START, "first").add_edge("first", "hostile").add_edge("hostile", END)
    return graph


app = build()
