"""A graph on Ray, and a driver of it that can be killed: ``python -m ... ADDRESS FOLDER``."""

from __future__ import annotations

import sys
from typing import Any

from milecastle import END, START, ExecutionConfig, Ray, StateGraph
from tests.acceptance.compute import graphs
from tests.acceptance.compute.graphs import Work

ITEMS = 60
MOST = 8


def takes_a_while(state: Work) -> Work:
    """Number 20 waits for the test, the first time."""
    import time

    number = state.get("number", 0)
    times = graphs.note(state, f"ran {number}")
    if number == 20 and times == 1:
        graphs.note(state, "reached")
        time.sleep(600)
    return {"said": [f"{number}"]}


def mapped(run_on: Any) -> StateGraph[Work]:
    made = StateGraph(Work)
    made.add_node("split", graphs.split)
    made.add_node("item", takes_a_while, run_on=run_on)
    made.add_edge(START, "split")
    made.map("split", "item", over="numbers", item="number")
    made.add_edge("item", END)
    return made.with_default_config(ExecutionConfig(max_parallel=MOST))


plain = mapped("ray")
needing = mapped(Ray(num_cpus=1, resources={"lane": 1}))


def main(address: str, folder: str) -> None:
    """Run the map until this process is killed."""
    import ray  # pyright: ignore[reportMissingImports] - these tests skip without it

    made: Any = ray
    made.init(address=address, log_to_driver=False, logging_level="ERROR")
    app = plain.compile(store=f"sqlite:///{folder}/runs.db")
    app.invoke({"numbers": [*range(ITEMS)], "folder": folder}, thread="t")


if __name__ == "__main__":
    from tests.acceptance.compute import on_ray

    on_ray.main(*sys.argv[1:])
