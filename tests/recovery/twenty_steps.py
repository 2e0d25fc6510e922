"""A run of twenty steps in a separate process, to be disturbed from outside.

Run as ``python -m tests.recovery.twenty_steps URL [swallow] [limit=BYTES]``. Each node says its
step before anything else: the steps before it are acknowledged then. In the end the process says
``done`` and how the state came out, or ``failed`` and which error it was given. ``swallow`` has
the store hide its errors: the control. ``limit`` bounds the size of every file: a write that
crosses it is cut short by the system, and the next one is refused.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypedDict

from milecastle import END, START, App, StateGraph, append
from milecastle.errors import MilecastleError, StoreError
from milecastle.ports.store import Batch, Store
from milecastle.stores.opening import find_store
from milecastle.testing.faulty_stores import WrappedStore

STEPS = 20
THREAD = "twenty"


class Walk(TypedDict):
    miles: Annotated[list[int], append]
    text: str


INPUT: Walk = {"miles": [], "text": ""}
EXPECTED: Walk = {"miles": list(range(STEPS)), "text": "x" * 40 * STEPS}


class Swallowing(WrappedStore):
    """Says that all is well, whatever happened."""

    def commit(self, batch: Batch) -> None:
        with suppress(StoreError):
            super().commit(batch)


def say(text: str) -> None:
    """Report to the listening process, without a buffer in between."""
    os.write(1, text.encode() + b"\n")


def make_app(store: Store, say: Callable[[str], None]) -> App[Walk]:
    """The graph: one node that walks a mile until there are enough."""
    graph = StateGraph(Walk)

    def walk(state: Walk) -> dict[str, Any]:
        mile = len(state["miles"])
        say(f"step {mile}")
        return {"miles": [mile], "text": state["text"] + "x" * 40}

    def enough(state: Walk) -> str:
        return END if len(state["miles"]) == STEPS else "walk"

    graph.add_node("walk", walk)
    graph.add_edge(START, "walk")
    graph.add_conditional_edges("walk", enough, ["walk", END])
    return graph.compile(store=store)


def main(url: str, *options: str) -> int:
    """Run; 0 if the run says that it ended, 3 if it says that it did not."""
    for option in options:
        if option.startswith("limit="):
            size = int(option.removeprefix("limit="))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        store = find_store(url)
        app = make_app(Swallowing(store) if "swallow" in options else store, say)
        result = app.invoke(INPUT, thread=THREAD)
        store.close()
    except MilecastleError as error:
        say(f"failed {type(error).__name__}")
        return 3
    say("done right" if result.state == EXPECTED else "done wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
