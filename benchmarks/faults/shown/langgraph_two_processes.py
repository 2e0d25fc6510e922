"""LangGraph, the library: two processes continue one thread, and each calls its nodes.

    python -m benchmarks.faults.shown.langgraph_two_processes

Prints how often `charge` was called for one order.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class Order(TypedDict, total=False):
    receipt: str


def charge(state: Order) -> Order:
    with Path("charges").open("a") as log:
        log.write("charged\n")
    time.sleep(1)
    return {"receipt": "paid"}


def app(saver: SqliteSaver) -> Any:
    graph = StateGraph(Order).add_node("charge", charge)
    return graph.add_edge(START, "charge").add_edge("charge", END).compile(checkpointer=saver)


if __name__ == "__main__" and len(sys.argv) > 1:
    with SqliteSaver.from_conn_string("store.db") as saver:
        app(saver).invoke({}, {"configurable": {"thread_id": "order-1"}})
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "run"]
        for process in [subprocess.Popen(command, cwd=folder) for _ in range(2)]:
            process.wait()
        print("charged", len((Path(folder) / "charges").read_text().split()), "times")
