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
    pytest.mark.no_cover,
    pytest.mark.skipif(sys.platform == "win32", reason="forks, and kills with SIGKILL"),
]
KINDS = ["sqlite", pytest.param("postgres", marks=POSTGRES)]
KILLED = -9


def killed_at_each_call(example: str, kind: str, folder: Path) -> dict[str, Any]:
    """What happened, by the processes themselves."""
    report = folder / "report.json"
    url = Stores(folder).url(kind)
    command = [sys.executable, "-W", "error", "-m", "tests.process.agent_kills"]
    done = subprocess.run(
        [*command, example, url, str(report)], cwd=ROOT, timeout=600, check=False, text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_recorded_call_of_a_pydantic_ai_agent_is_made_again(kind: str, tmp_path: Path) -> None:
    """A kill at every model and tool call, also while a parallel one is on record and another not.

    Fails if calls are not recorded, or if a record is named by the order of calls instead of the
    call (``trains`` then gets the result of ``weather``).
    """
    pytest.importorskip("pydantic_ai")
    found = killed_at_each_call("pydantic_ai_agent", kind, tmp_path)
    whole = found["whole"]
    assert whole["calls"] == ["model 0", "weather", "trains", "model 1", "book", "model 2"]
    assert len(found["kills"]) == 2 * len(whole["calls"])
    for number, (first, second, third) in enumerate(found["kills"]):
        dies_at, waits = divmod(number, 2)
        assert (first["status"], len(first["calls"])) == (KILLED, dies_at + 1)
        assert not {*second["calls"]} & {*second["records"]}, number
        assert {*second["calls"]} | {*second["records"]} == {*whole["calls"]}, number
        if waits:
            assert second["records"] == sorted(first["calls"][:-1])
        assert second["returned"] == third["returned"] == whole["returned"]
        assert third["calls"] == []
