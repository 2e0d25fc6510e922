"""A process that runs a fan-out and notes each item that it runs, before it runs it.

``python -m tests.process.fanout_worker <store> <notes> <items>``
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, TypedDict

from milecastle import END, START, App, StateGraph, append

PARALLEL = 32


class Work(TypedDict, total=False):
    numbers: list[int]
    number: int
    found: Annotated[list[int], append]


def build(store: str, notes: int) -> App[Work]:
    """The fan-out; ``notes`` is a file opened for appending."""
    graph = StateGraph(Work)

    def split(state: Work) -> None:
        return None

    def item(state: Work) -> Work:
        number = state.get("number", -1)
        os.write(notes, f"{number}\n".encode())
        return {"found": [number]}

    graph.add_node("split", split)
    graph.add_node("item", item)
    graph.add_edge(START, "split")
    graph.map("split", "item", over="numbers", item="number")
    graph.add_edge("item", END)
    return graph.compile(store=store)


def main(store: str, notes: str, items: str) -> None:
    """Run the fan-out to its end, or resume it."""
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    result = build(store, file).invoke({"numbers": list(range(int(items)))}, "fanout")
    if result.state.get("found") != list(range(int(items))):
        raise AssertionError("the fan-out lost an item, or their order")


if __name__ == "__main__":
    main(*sys.argv[1:])
