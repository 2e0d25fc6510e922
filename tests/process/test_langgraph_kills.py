"""kill -9 of a process that stores LangGraph checkpoints: what was acknowledged is there, whole."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.base")

from milecastle.integrations.langgraph import MilecastleSaver
from tests.every_store import POSTGRES, Stores

KILLS = int(os.environ.get("MILECASTLE_SAVER_KILLS", "2"))

WRITER = """
import sys
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from milecastle.integrations.langgraph import MilecastleSaver

with MilecastleSaver(sys.argv[1]) as saver:
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    found = saver.get_tuple(config)
    step = found.metadata["step"] + 1 if found else 0
    if found:
        config = found.config
    while True:
        values = {"items": list(range(step + 1)), "branch:to:work": None}
        versions = dict.fromkeys(values, step + 1)
        checkpoint = {**empty_checkpoint(), "id": str(uuid6(clock_seq=step)),
                      "channel_values": values, "channel_versions": versions}
        config = saver.put(config, checkpoint, {"source": "loop", "step": step}, versions)
        print("put", step, flush=True)
        saver.put_writes(config, [("items", [step])], f"task-{step}")
        print("wrote", step, flush=True)
        step += 1
"""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=POSTGRES)])
def test_killed_writer_loses_nothing_acknowledged(kind: str, tmp_path: Path) -> None:
    """Fails if a call returns before its commit, or if a state is rebuilt from half a batch."""
    stores = Stores(tmp_path)
    store = stores.open(kind)
    acknowledged: dict[str, int] = {"put": -1, "wrote": -1}
    chance = random.Random(7)
    for _ in range(KILLS):
        told = _killed_after(stores.url(kind), chance.randrange(1, 25))
        acknowledged = {name: max(told[name], acknowledged[name]) for name in told}
        _check(MilecastleSaver(store), acknowledged)
    stores.close()


def _killed_after(url: str, lines: int) -> dict[str, int]:
    """Run the writer, kill it after so many lines, and return the last step of each kind."""
    told = {"put": -1, "wrote": -1}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout, 1):
            name, _, step = line.partition(" ")
            told[name] = int(step)
            if number == lines:
                process.kill()
    return told


def _check(saver: MilecastleSaver, acknowledged: dict[str, int]) -> None:
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    found: list[Any] = [*saver.list(place)]
    steps = [one.metadata["step"] for one in found]
    assert steps == list(reversed(range(len(steps))))
    assert steps[0] >= acknowledged["put"]
    for one in found:
        step = one.metadata["step"]
        assert one.checkpoint["channel_values"]["items"] == list(range(step + 1))
        if step <= acknowledged["wrote"] and step in _written(acknowledged, found):
            assert one.pending_writes == [(f"task-{step}", "items", [step])]


def _written(acknowledged: dict[str, int], found: list[Any]) -> set[int]:
    """Steps whose writes must be there: a kill may fall between a checkpoint and its writes."""
    lost = {one.metadata["step"] for one in found if not one.pending_writes}
    assert len(lost) <= KILLS
    assert acknowledged["wrote"] not in lost
    return set(range(acknowledged["wrote"] + 1)) - lost
