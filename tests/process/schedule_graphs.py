"""A graph with a schedule that fires fast, and leaves a line in a ledger when it runs.

Imported by workers as ``tests.process.schedule_graphs:app``; the store is that of ``--store``, the
ledger and the period are those of the environment.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

from milecastle import END, START, StateGraph

LEDGER = "MILECASTLE_TEST_LEDGER"
PERIOD = "MILECASTLE_TEST_PERIOD"


class Firing(TypedDict):
    tick: int


def work(state: Firing) -> dict[str, Any]:
    """Write that it begins and that it ends, each line at once."""
    ledger = Path(os.environ[LEDGER])
    for word in ("begins", "ends"):
        with ledger.open("a", encoding="ascii") as file:
            file.write(f"{word} {state['tick']} {time.time_ns() // 1000}\n")
        time.sleep(0.005)
    return {}


def tick_of(moment: datetime) -> dict[str, Any]:
    return {"tick": round(moment.timestamp() * 1_000_000)}


def build(milliseconds: int) -> StateGraph[Firing]:
    graph: StateGraph[Firing] = StateGraph(Firing, name="fast")
    graph.add_node("work", work)
    graph.add_edges(START, "work", END)
    period = timedelta(milliseconds=milliseconds)
    graph.schedule(period, input=tick_of, overlap="queue", catch_up="all")
    return graph


app = build(int(os.environ.get(PERIOD, "100")))
