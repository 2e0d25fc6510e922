"""Agents of other libraries, killed with SIGKILL at each model and tool call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.every_store import POSTGRES, Stores
from tests.process.fleet_chaos import ROOT

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="forks, and kills with SIGKILL"),
]
KINDS = ["sqlite", pytest.param("postgres", marks=POSTGRES)]
KILLED = -9


def killed_at_each_call(example: str, kind: str, folder: Path) -> dict[str, Any]:
    """What happened, by the processes themselves."""
    report = folder / "report.json"
    url = Stores(folder).url(kind, example)
    command = [sys.executable, "-W", "error", "-m", "tests.process.agent_kills"]
    done = subprocess.run(
        [*command, example, url, str(report)],
        cwd=ROOT,
        timeout=600,
        check=False,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return found


def assert_nothing_recorded_was_called_again(found: dict[str, Any]) -> None:
    whole = found["whole"]
    assert {killed["at"] for killed, *_ in found["kills"]} == {*range(len(whole["calls"]))}
    for first, second, third in found["kills"]:
        case = first["at"], first["waits"]
        assert (first["status"], len(first["calls"])) == (KILLED, first["at"] + 1), case
        assert not {*second["calls"]} & {*second["records"]}, case
        assert sorted([*second["calls"], *second["records"]]) == sorted(whole["calls"]), case
        if first["waits"]:
            assert second["records"] == sorted(first["calls"][:-1]), case
        assert second["returned"] == third["returned"] == whole["returned"], case
        assert third["calls"] == [], case


@pytest.mark.parametrize("kind", KINDS)
def test_no_recorded_call_of_a_pydantic_ai_agent_is_made_again(kind: str, tmp_path: Path) -> None:
    """A kill at every model and tool call; of two parallel tools, one is on record.

    Fails if calls are not recorded, or if the record of a tool is named by the tool alone.
    """
    pytest.importorskip("pydantic_ai")
    found = killed_at_each_call("pydantic_ai_agent", kind, tmp_path)
    calls = ["model 0", "weather", "trains", "model 1", "book", "model 2"]
    assert found["whole"]["calls"] == calls
    assert_nothing_recorded_was_called_again(found)


@pytest.mark.parametrize("kind", KINDS)
def test_no_recorded_call_of_an_openai_agent_is_made_again(kind: str, tmp_path: Path) -> None:
    """And its session has each item once, and its approval is asked for once.

    Fails if model or tool calls are not recorded, and if a session in a node forgets what it added.
    """
    pytest.importorskip("agents")
    found = killed_at_each_call("openai_agents_approval", kind, tmp_path)
    assert found["whole"]["calls"] == ["model 0", "refund", "model 1"]
    items = "user function_call function_call_output message"
    assert found["whole"]["returned"] == f"You get 30 back. {items}"
    assert_nothing_recorded_was_called_again(found)
