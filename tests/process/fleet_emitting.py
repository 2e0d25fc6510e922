"""A graph whose node emits; imported by workers as ``tests.process.fleet_emitting:app``.

``rate`` is how many values it emits in a second, 0 for all at once. Each value is the time at which
it was emitted, so that a reader on this machine can say how old it is.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, TypedDict

from milecastle import END, START, Context, StateGraph, append


class Speech(TypedDict):
    count: int
    rate: float
    text: str
    took: Annotated[list[float], append]


async def speak(state: Speech, ctx: Context) -> dict[str, Any]:
    began = time.monotonic()
    for number in range(state["count"]):
        if state["rate"]:
            await asyncio.sleep(max(0.0, began + number / state["rate"] - time.monotonic()))
        await ctx.aemit([number, time.time(), state["text"]])
    return {"took": [time.monotonic() - began]}


def build() -> StateGraph[Speech]:
    graph: StateGraph[Speech] = StateGraph(Speech, name="speech")
    graph.add_node("speak", speak)
    graph.add_edge(START, "speak").add_edge("speak", END)
    return graph


app = build()
