"""Agents are killed in their tools and models: each call has one key, and budgets hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.process.tool_kills import TOKENS, Found, Plan

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]
KILLS = int(os.environ.get("MILECASTLE_AGENT_KILLS", "200"))
ROOT = Path(__file__).resolve().parents[2]


def killed(folder: Path, **given: object) -> Found:
    plan = msgspec.convert(
        {"url": f"sqlite:///{folder}/agents.db", "folder": str(folder), "seed": 7, **given}, Plan
    )
    command = [sys.executable, "-m", "tests.process.tool_kills", msgspec.json.encode(plan).decode()]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Found)


@pytest.mark.parametrize(
    ("runs", "least"),
    [
        pytest.param(2, 2, id="quick"),
        pytest.param(KILLS, KILLS, marks=pytest.mark.slow, id="long"),
    ],
)
def test_each_call_of_a_tool_has_one_key_though_its_process_is_killed(
    tmp_path: Path, runs: int, least: int
) -> None:
    """The control below loses payments."""
    found = killed(tmp_path, runs=runs, chance=0.2)
    assert found.kills >= least
    assert found.requests > sum(found.keys)
    assert (found.keys, found.changed) == ([10] * runs, 0)


@pytest.mark.control
def test_ids_of_the_model_are_not_keys(tmp_path: Path) -> None:
    """Control: a model gives the same ids in each turn."""
    found = killed(tmp_path, key="given_id", chance=0.0)
    assert (found.keys, found.changed) == ([2], 8)


@pytest.mark.parametrize(
    "runs", [pytest.param(2, id="quick"), pytest.param(50, marks=pytest.mark.slow, id="long")]
)
def test_budget_with_a_reserve_is_never_exceeded(tmp_path: Path, runs: int) -> None:
    """The control below exceeds it."""
    found = killed(tmp_path, runs=runs, chance=0.35, budget=1500, reserve=TOKENS)
    assert found.kills > 0
    assert [calls * TOKENS for calls in found.model_calls] == [1500] * runs


@pytest.mark.control
def test_budget_without_a_reserve_is_exceeded(tmp_path: Path) -> None:
    """Control: what a killed call used is not known."""
    found = killed(tmp_path, chance=0.35, budget=1500)
    assert found.kills > 0
    assert found.model_calls[0] * TOKENS > 1500
