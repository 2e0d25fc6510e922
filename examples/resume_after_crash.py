"""A run that is killed half-way, and the same call again: it resumes where it stopped.

Each call is a separate process. The first one is killed (kill -9) in the middle of a node, the
second one resumes, and the third one finds that the run completed and does nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

from milecastle import END, START, StateGraph, append


class Order(TypedDict):
    items: list[str]
    log: Annotated[list[str], append]
    total: int


power = {"fails": False}
graph = StateGraph(Order)


@graph.node
def price(state: Order) -> dict[str, Any]:
    print("  pricing", flush=True)
    return {"total": 10 * len(state["items"]), "log": ["priced"]}


@graph.node
def reserve(state: Order) -> dict[str, Any]:
    if power["fails"]:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    print("  reserving", flush=True)
    return {"log": [f"reserved {item}" for item in state["items"]]}


graph.add_edges(START, "price", "reserve", END)


def order(what: str) -> None:
    power["fails"] = what == "first"
    app = graph.compile(store="sqlite:///orders.db")
    done = app.invoke({"items": ["lamp", "rope"]}, thread="order-7")
    how = "had completed" if done.reused else "completed"
    print(f"{how}: total {done['total']}, {', '.join(done['log'])}")


def main() -> None:
    with TemporaryDirectory() as folder:
        for what in ("first", "second", "third"):
            print(f"{what} call", flush=True)
            command = [sys.executable, str(Path(__file__).resolve()), what]
            ended = subprocess.run(command, cwd=folder, check=False)  # noqa: S603 - this very file
            if ended.returncode:
                print("killed", flush=True)


if __name__ == "__main__":
    order(sys.argv[1]) if sys.argv[1:] else main()
