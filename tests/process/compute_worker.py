"""A process that runs a map in other processes; each item is noted before it is run.

``python -m tests.process.compute_worker <store> <notes> <items>``
"""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, TypedDict

from milecastle import END, START, ExecutionConfig, StateGraph, append

PARALLEL = 8


class Work(TypedDict, total=False):
    notes: str
    numbers: list[int]
    number: int
    found: Annotated[list[int], append]


def split(state: Work) -> None:
    """Nothing is done before the map."""


def item(state: Work) -> Work:
    """Note the number and the process, then take a while."""
    number = state.get("number", -1)
    file = os.open(state.get("notes", ""), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{number} {os.getpid()}\n".encode())
    os.close(file)
    time.sleep(0.005)
    return {"found": [number]}


graph = StateGraph(Work)
graph.add_node("split", split)
graph.add_node("item", item, run_on="process")
graph.add_edge(START, "split")
graph.map("split", "item", over="numbers", item="number")
graph.add_edge("item", END)
graph.with_default_config(ExecutionConfig(max_parallel=PARALLEL))


def main(store: str, notes: str, items: str) -> None:
    """Run the map to its end, or resume it."""
    app = graph.compile(store=store)
    result = app.invoke({"notes": notes, "numbers": [*range(int(items))]}, "map")
    if result.state.get("found") != [*range(int(items))]:
        raise AssertionError("the map lost an item, or their order")


if __name__ == "__main__":
    main(*sys.argv[1:])
