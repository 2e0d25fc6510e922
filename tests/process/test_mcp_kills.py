"""Servers are killed in every state of a client's task: the same id ends with the result."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.process.mcp_kills import Killing, Outcome, prove

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")]
ROUNDS = int(os.environ.get("MILECASTLE_MCP_ROUNDS", "10"))


def test_task_outlives_its_server_in_every_state(url: str, tmp_path: Path) -> None:
    """The controls below are caught."""
    found = prove(url, tmp_path)
    assert (found.tasks, found.kills) == (7, 2)
    assert found.is_good, found


@pytest.mark.slow
def test_tasks_outlive_their_servers_at_any_moment(url: str, tmp_path: Path) -> None:
    found = prove(url, tmp_path, ROUNDS)
    assert found.kills == 2 * ROUNDS
    assert found.is_good, found


def control(how: str, folder: Path) -> Outcome:
    killing = Killing(f"sqlite:///{folder}/runs.db", folder, how)
    killing.prove(["queued"])
    return killing.outcome


@pytest.mark.control
def test_id_that_is_returned_before_the_run_is_committed_is_lost(tmp_path: Path) -> None:
    """Control: the run is submitted behind the answer."""
    assert control("answers-first", tmp_path).lost == 1


@pytest.mark.control
def test_ids_from_a_counter_mix_tasks(tmp_path: Path) -> None:
    """Control: the server that is started again counts from one."""
    assert control("counts-ids", tmp_path).mixed == 1
