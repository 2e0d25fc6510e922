"""kill -9 at any step of a deletion: deleting again leaves nothing but the tombstone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="who deletes is forked")


def interrupt(folder: Path, *options: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.process.jsonl_deletions", str(folder), *options]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(outcome.stdout)
    return found


def test_nothing_stays_of_a_deletion_that_was_interrupted(tmp_path: Path) -> None:
    found = interrupt(tmp_path)
    assert found["steps"] > 20
    assert 0 < found["undone"] <= found["steps"]
    assert (found["left"], found["harmed"], found["wrong"]) == (0, 0, 0), found


@pytest.mark.control
def test_a_tombstone_that_comes_first_is_caught(tmp_path: Path) -> None:
    found = interrupt(tmp_path, "cheat")
    assert 0 < found["left"] < found["steps"], found
