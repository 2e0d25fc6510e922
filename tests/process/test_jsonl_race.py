"""Two processes want the same seq: one wins, the other is told, and nothing is lost.

`MILECASTLE_RACES` is the number of races.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RACES = int(os.environ.get("MILECASTLE_RACES", "200"))

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked")


def race(folder: Path, races: int, *options: str) -> list[str]:
    command = [sys.executable, "-m", "tests.process.jsonl_race", str(folder), str(races)]
    outcome = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(outcome.stdout)
    return found


def test_of_two_processes_one_wins_each_seq(tmp_path: Path) -> None:
    assert race(tmp_path, RACES) == []


def test_a_store_without_its_lock_is_caught(tmp_path: Path) -> None:
    assert race(tmp_path, 200, "broken") != []
