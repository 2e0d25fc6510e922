"""kill -9 of forked writers by the thousand, on every store that outlives a process.

`MILECASTLE_KILLS` is the number of writers that are killed on each store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.every_store import POSTGRES
from tests.postgres_cluster import new_schema, the_cluster
from tests.process.acknowledging import KILLS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked")


@pytest.fixture(params=["jsonl", "sqlite", pytest.param("postgres", marks=POSTGRES)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return the_cluster().url_of(new_schema(), max_size="1")
    return f"file://{tmp_path}" if request.param == "jsonl" else f"sqlite:///{tmp_path}/store.db"


def kill(url: str, kills: int, *options: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.process.kills", url, str(kills), "1"]
    outcome = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    found: dict[str, int] = json.loads(outcome.stdout)
    return found


def test_nothing_acknowledged_is_lost_to_a_kill(url: str) -> None:
    found = kill(url, KILLS)
    print(found)
    assert found["writers"] == KILLS
    assert found["acknowledged"] > KILLS
    assert (found["lost"], found["invented"], found["wrong"]) == (0, 0, 0), found


@pytest.mark.control
def test_a_writer_that_acknowledges_too_early_is_caught(url: str) -> None:
    assert kill(url, 30, "cheat")["lost"] > 0
