"""A run that counts its steps in long-term memory, in a process that kills itself again and again.

    python -m tests.process.memory_kills URL HOW STEPS SEED DEADLY

``HOW`` is ``commit``: a write is part of its step's commit; or ``apart``, the control: the node
writes in a transaction of its own, as it would without ``ctx.memory``. Kills come inside the node
after it has written, with the chance ``DEADLY``, and but for the control at any moment, between any
two statements.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TypedDict

from milecastle import END, START, App, Context, ExecutionOptions, StateGraph, open_store

FACTS = ("users", "u7", "facts")
NEVER = 0


class Count(TypedDict):
    n: int


def counting(
    url: str, how: str, steps: int, chance: random.Random | None = None, deadly: float = 0.0
) -> App[Count]:
    """An app whose only node runs ``steps`` times; with a ``chance`` it may be killed there."""
    graph: StateGraph[Count] = StateGraph(Count, name="counting")

    @graph.node
    def count(state: Count, ctx: Context) -> Count:
        memory = ctx.memory if how == "commit" else app.memory
        memory.put(FACTS, "n", {"text": f"step {state['n'] + 1}"}, words=True)
        if chance is not None and chance.random() < deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": state["n"] + 1}

    graph.add_edge(START, "count")
    graph.add_conditional_edges("count", lambda s: "count" if s["n"] < steps else END)
    app = graph.compile(store=open_store(url).store)
    return app


def killed(url: str, how: str, steps: int, kills: int, seed: int) -> tuple[int, int, list[str]]:
    """Kill the run so often and let it end; the kills, the version, and the words of its item."""
    done, chance, deadly = 0, random.Random(seed), kills / (steps + kills)
    while True:
        with_kill = chance.randrange(1, 2**31) if done < kills else NEVER
        command = [sys.executable, "-m", "tests.process.memory_kills", url, how]
        ended = subprocess.run(
            [*command, str(steps), str(with_kill), str(deadly)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        done += 1
    with closing(counting(url, how, steps)) as app:
        assert app.state("t")["n"] == steps
        item = app.memory.get(FACTS, "n")
        found = app.memory.search(FACTS, words="step", limit=9)
        assert item is not None
        assert [hit.item for hit in found] == [item]
        return done, item.version, [item.value["text"]]


def main(url: str, how: str, steps: str, seed: str, deadly: str) -> None:
    """Run, or go on, until the end or a kill."""
    chance = random.Random(int(seed)) if int(seed) else None
    app = counting(url, how, int(steps), chance, float(deadly))
    if chance is not None and how == "commit":
        after = chance.uniform(0.0, 0.02 / float(deadly))
        threading.Thread(target=_kill, args=[after], daemon=True).start()
    app.invoke({"n": 0}, "t", options=ExecutionOptions(max_steps=int(steps) + 10))


def _kill(after: float) -> None:
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
