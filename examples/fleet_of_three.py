"""Three workers share letters; one is killed (kill -9), and the other two finish what it had.

Each worker is a process of its own, and the store is all that they share: here a SQLite file; with
``MILECASTLE_STORE=postgresql://...`` they could be on three machines.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

from milecastle import END, START, StateGraph, append
from milecastle.stores import ClaimStore

LETTERS = [f"letter-{number}" for number in range(1, 10)]
STEP_SECONDS = 0.3


class Letter(TypedDict):
    to: str
    log: Annotated[list[str], append]


def step(word: str) -> Callable[[Letter], dict[str, Any]]:
    def work(state: Letter) -> dict[str, Any]:
        time.sleep(STEP_SECONDS)
        return {"log": [word]}

    return work


graph = StateGraph(Letter, name="letters")
graph.add_node("write", step("written"))
graph.add_node("stamp", step("stamped"))
graph.add_node("send", step("sent"))
graph.add_edges(START, "write", "stamp", "send", END)


def worker(url: str) -> subprocess.Popen[bytes]:
    """A worker that takes three letters at a time, and is missed after two seconds."""
    command = [sys.executable, "-m", "milecastle", "worker", "fleet_of_three:graph"]
    options = ["--store", url, "--concurrency", "3", "--silent-after", "2"]
    here, quiet = Path(__file__).resolve().parent, subprocess.DEVNULL
    return subprocess.Popen([*command, *options], cwd=here, stderr=quiet)  # noqa: S603 - this file


def until(done: Callable[[], Any]) -> Any:
    while not (found := done()):
        time.sleep(0.02)
    return found


def deliver(url: str) -> None:
    app = graph.compile(store=url)
    store, workers = app.store, [worker(url) for _ in range(3)]
    assert isinstance(store, ClaimStore)  # noqa: S101 - for type checkers
    until(lambda: len(store.workers()) == 3)
    app.submit_many({name: {"to": name} for name in LETTERS})
    busy = until(lambda: [known for known in store.workers() if known.running])
    os.kill(busy[0].owner.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    print("one of three workers was killed while it had letters")
    for name in LETTERS:
        print(f"{name}: {', '.join(app.wait(name)['log'])}")
    for process in workers:
        process.terminate()
        process.wait()
    app.close()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        deliver(os.environ.get("MILECASTLE_STORE") or f"sqlite:///{folder}/letters.db")
