"""Kills processes that store LangGraph checkpoints, and says what became of what they stored.

Run as ``python -m tests.process.langgraph_kills URL KILLS SEED [cheat]``; prints JSON. Writers are
forked, because LangGraph takes long to import. ``cheat`` makes them acknowledge before they store:
the control.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
import time
from functools import partial
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from milecastle.integrations.langgraph import MilecastleSaver
from tests.process.acknowledging import end_writer, fork_writer

PER_THREAD = 20


class Thread:
    """One thread, and how many of its checkpoints and writes were acknowledged."""

    def __init__(self, name: str, cheat: bool) -> None:
        self.place: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self._cheat = cheat
        self._noted = memoryview(mmap.mmap(-1, 16)).cast("q")  # outlives the writer
        self._unwritten: set[int] = set()
        self._steps = 0
        self.stored = 0

    def write(self, url: str) -> None:
        """Put checkpoints with writes until killed."""
        saver = MilecastleSaver(url)
        found = saver.get_tuple(self.place)
        config = found.config if found else self.place
        step = self._steps
        while True:
            checkpoint, versions = checkpoint_of(step)
            if self._cheat:
                self._noted[0] = step + 1
                time.sleep(1)
            config = saver.put(config, checkpoint, {"source": "loop", "step": step}, versions)
            self._noted[0] = step + 1
            saver.put_writes(config, [("items", [step])], f"task-{step}")
            self._noted[1] = step + 1
            step += 1

    def wait(self, chance: random.Random) -> None:
        """Wait until something was acknowledged, and then for a moment."""
        enough = sum(self._noted) + (1 if self._cheat else chance.randrange(1, 12))
        until = time.monotonic() + 60
        while sum(self._noted) < enough and time.monotonic() < until:
            time.sleep(0.0002)
        time.sleep(chance.random() * 0.005)

    def judge(self, url: str) -> tuple[int, int]:
        """How many acknowledged calls are lost, and how many checkpoints are wrong."""
        puts, writes = self._noted
        with MilecastleSaver(url) as saver:
            found: list[Any] = [*saver.list(self.place)][::-1]
        self.stored = len(found) - self._steps
        self._steps = len(found)
        lost = max(0, puts - len(found))
        wrong = max(0, len(found) - puts - 1)
        for step, one in enumerate(found):
            wrong += one.metadata["step"] != step
            wrong += one.checkpoint["channel_values"]["items"] != list(range(step + 1))
            if one.pending_writes:
                wrong += one.pending_writes != [(f"task-{step}", "items", [step])]
            elif step >= writes and step == len(found) - 1:
                self._unwritten.add(step)  # killed before its writes were acknowledged
            else:
                lost += step not in self._unwritten
        self._noted[0] = self._noted[1] = len(found)
        return lost, wrong


def checkpoint_of(step: int) -> tuple[Any, dict[str, Any]]:
    """The checkpoint of a step, with a list that grows, and its versions."""
    values = {"items": list(range(step + 1)), "branch:to:work": None}
    versions: dict[str, Any] = dict.fromkeys(values, step + 1)
    id = str(uuid6(clock_seq=step))
    made = {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": versions}
    return made, versions


def main(url: str, kills: int, seed: int, cheat: bool) -> dict[str, int]:
    """Kill so many writers, and count what is lost or wrong."""
    chance = random.Random(seed)
    MilecastleSaver(url).close()
    thread = Thread("0", cheat)
    all_lost = all_wrong = stored = 0
    for number in range(kills):
        if number % PER_THREAD == 0:
            thread = Thread(str(number), cheat)
        writer = fork_writer(partial(thread.write, url))
        thread.wait(chance)
        all_wrong += not end_writer(writer)
        lost, wrong = thread.judge(url)
        all_lost, all_wrong, stored = all_lost + lost, all_wrong + wrong, stored + thread.stored
    return {"writers": kills, "stored": stored, "lost": all_lost, "wrong": all_wrong}


if __name__ == "__main__":
    url, count, seed = sys.argv[1:4]
    print(json.dumps(main(url, int(count), int(seed), "cheat" in sys.argv)))
