"""A fan-out killed with kill -9 in the middle repeats at most the items that were in flight."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl import JsonlStore
from tests.process.fanout_worker import PARALLEL

KILLS = int(os.environ.get("MILECASTLE_FANOUT_KILLS", "3"))
ITEMS = 3_000


def begun(folder: Path) -> list[str]:
    """The items that were begun so far, in order."""
    notes = folder / "notes"
    return notes.read_text().splitlines() if notes.exists() else []


def run(folder: Path, store: str, kill_at: int | None) -> None:
    """Run the fan-out to its end, or kill it once so many items were begun."""
    arguments = [store, str(folder / "notes"), str(ITEMS)]
    process = subprocess.Popen([sys.executable, "-m", "tests.process.fanout_worker", *arguments])
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if kill_at is not None and len(begun(folder)) >= kill_at:
            process.kill()
        time.sleep(0.001)
    assert process.wait(60) == (0 if kill_at is None else -9)


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_a_killed_fan_out_repeats_at_most_what_was_in_flight(kind: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else f"file://{tmp_path}/runs"
    random = Random(7)
    killed = 0
    for number in range(KILLS):
        at = random.randrange(
            number * ITEMS // (KILLS + 1) + 1, (number + 1) * ITEMS // (KILLS + 1)
        )
        run(tmp_path, store, at)
        killed += 1
        if kind == "jsonl":  # a writer killed inside a long write leaves a torn line
            JsonlStore(tmp_path / "runs").repair_thread(ThreadKey("default", "fanout"))
    run(tmp_path, store, None)
    counts = Counter(begun(tmp_path))
    assert set(counts) == {str(number) for number in range(ITEMS)}
    repeated = sum(counts.values()) - ITEMS
    assert repeated <= killed * PARALLEL, f"{repeated} items were repeated by {killed} kills"
