"""A graph in many versions, and a worker process that serves one and the nine before it.

Run as ``python -m tests.process.fleet_versions URL VERSION``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from milecastle import END, START, App, StateGraph, Store, append
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.stores.postgres import PostgresStore

LONG = 8.0
GRACE = 20.0


class Trip(TypedDict):
    long: bool
    times: Annotated[list[float], append]


def work(state: Trip) -> dict[str, Any]:
    """A step of 50 ms; ``times`` has when each began and ended."""
    began = time.time()
    time.sleep(0.05)
    return {"times": [began, time.time()]}


def perhaps_long(state: Trip) -> dict[str, Any]:
    """The same, or a node that takes longer than anything else, and says that it began."""
    began = time.time()
    if state["long"]:
        with Path(os.environ["MILECASTLE_TEST_STARTS"]).open("a", encoding="utf-8") as starts:
            starts.write("began\n")
        time.sleep(LONG)
    return {"times": [began, time.time()]}


def version(number: int, store: Store) -> App[Trip]:
    """The graph with a node that only this version has: each has its own fingerprint and lane."""
    graph: StateGraph[Trip] = StateGraph(Trip, name="rolling")
    names = ["first", "second", f"only in version {number}", "last"]
    for name in names:
        graph.add_node(name, perhaps_long if name == "second" else work)
    graph.add_edges(START, *names, END)
    return graph.compile(store=store)


def main(url: str, number: int) -> None:
    """Serve until SIGTERM; a run of 8 s must not outlive the versions that are served."""
    store = PostgresStore(url)
    apps = [version(each, store) for each in range(number, max(-1, number - 10), -1)]
    options = WorkerOptions(concurrency=20, poll=0.2, heartbeat=2.0, silent_after=10.0, grace=GRACE)
    asyncio.run(Worker(apps, options).run_until_signalled())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
