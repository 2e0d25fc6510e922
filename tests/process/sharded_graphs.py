"""A graph whose runs note each step in a file: what was done twice, and by whom, can be seen.

Imported by workers as ``tests.process.sharded_graphs:app``; the store is that of ``--store``.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, TypedDict

from milecastle import END, START, App, StateGraph, append

STEPS = 6


class Walk(TypedDict):
    n: int
    log: Annotated[list[int], append]


def step(state: Walk) -> dict[str, object]:
    """One step, long enough to be killed in."""
    time.sleep(float(os.environ.get("WALK_STEP", "0.03")))
    return {"n": state["n"] + 1, "log": [state["n"]]}


def onward(state: Walk) -> str:
    return "step" if state["n"] < STEPS else END


def build() -> StateGraph[Walk]:
    graph = StateGraph(Walk, name="walk")
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", onward, ["step", END])
    return graph


app: App[Walk] = build().compile()
