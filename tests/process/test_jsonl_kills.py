"""kill -9 at any moment: what was acknowledged is there, and nothing was made up.

`MILECASTLE_KILLS` is the number of writers that are killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("MILECASTLE_KILLS", "20"))

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked")


def kill(folder: Path, kills: int, *options: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.process.jsonl_kills", str(folder), str(kills), "1"]
    outcome = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, int] = json.loads(outcome.stdout)
    return found


def test_nothing_acknowledged_is_lost_to_a_kill(tmp_path: Path) -> None:
    found = kill(tmp_path, KILLS)
    assert found["kills"] == KILLS
    assert found["written"] > KILLS // 5  # a busy disk lets few of them write much
    assert (found["lost"], found["invented"], found["wrong"]) == (0, 0, 0), found


def test_a_writer_that_acknowledges_too_early_is_caught(tmp_path: Path) -> None:
    for attempt in range(6):  # a kill finds the cheat out only if it comes between two calls
        if kill(tmp_path / str(attempt), 50, "cheat")["lost"] > 0:
            return
    pytest.fail("300 kills did not find the cheat out")
