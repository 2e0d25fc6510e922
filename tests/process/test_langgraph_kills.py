"""kill -9 of a process that stores LangGraph checkpoints: what was acknowledged is there, whole.

`MILECASTLE_SAVER_KILLS` is the number of writers that are killed on each store.
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

pytest.importorskip("langgraph.checkpoint.base")

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("MILECASTLE_SAVER_KILLS", "5"))

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked")


def kill(url: str, kills: int, *options: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.process.langgraph_kills", url, str(kills), "1"]
    outcome = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    found: dict[str, int] = json.loads(outcome.stdout)
    return found


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=POSTGRES)])
def test_killed_writer_loses_nothing_acknowledged(kind: str, tmp_path: Path) -> None:
    """Fails if a call returns before its commit, or if a state is rebuilt from half a batch."""
    url = f"sqlite:///{tmp_path}/store.db"
    if kind == "postgres":
        url = the_cluster().url_of(new_schema(), max_size="1")
    found = kill(url, KILLS)
    assert found["writers"] == KILLS
    assert found["stored"] > KILLS
    assert (found["lost"], found["wrong"]) == (0, 0), found


@pytest.mark.control
def test_writer_that_acknowledges_too_early_is_caught(tmp_path: Path) -> None:
    assert kill(f"sqlite:///{tmp_path}/store.db", 3, "cheat")["lost"] > 0
