"""The power goes while a writer commits: what was acknowledged before is there.

`MILECASTLE_CUTS` is the number of cuts for each store on each file system.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CUTS = int(os.environ.get("MILECASTLE_CUTS", "8"))
STORES = ("jsonl", "sqlite")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="file systems of Linux")


@cache
def obstacle() -> str:
    from tests.process.power_cut import available

    return available()


@pytest.fixture(params=["ext4", "xfs"])
def file_system(request: pytest.FixtureRequest) -> str:
    kind = str(request.param)
    if obstacle():
        pytest.skip(obstacle())
    if not shutil.which(f"mkfs.{kind}"):
        pytest.skip(f"mkfs.{kind} is not installed")
    return kind


def cut(file_system: str, store: str, cuts: int, *options: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.process.power_cut", file_system, store, str(cuts), "1"]
    outcome = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    found: dict[str, int] = json.loads(outcome.stdout)
    return found


@pytest.mark.parametrize("store", STORES)
def test_nothing_acknowledged_is_lost_with_the_power(file_system: str, store: str) -> None:
    found = cut(file_system, store, CUTS)
    print(found)
    assert found["writers"] == CUTS
    assert found["acknowledged"] > CUTS
    assert (found["lost"], found["invented"], found["wrong"]) == (0, 0, 0), found


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_does_not_sync_is_caught(file_system: str, store: str) -> None:
    found = cut(file_system, store, 8, "cheat")
    assert found["lost"] > 0
    assert (found["invented"], found["wrong"]) == (0, 0), found
