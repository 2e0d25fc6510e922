"""The two programs of the page that puts an agent beside the same in LangGraph, killed and run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, read

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="programs are killed"),
]
PAGE = "docs/explanation/agent-beside-langgraph.md"
SAID = r"looking up \w+?(?=looking|\n)|paying \w+|interrupted|completed.*"
FOLDER = ROOT / "examples" / "beside"
LANGGRAPH = pytest.mark.skipif(find_spec("langchain") is None, reason="langchain is not installed")
PROGRAMS = ["milecastle", pytest.param("langgraph", marks=LANGGRAPH)]


def run(name: str, folder: Path, *words: str, **environment: str) -> tuple[int, list[str]]:
    """The status, and what was said, in any order: tools run in parallel."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}_desk.py"), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, sorted(re.findall(SAID, done.stdout))


@pytest.mark.parametrize("name", PROGRAMS)
def test_agent_is_killed_while_it_pays(name: str, tmp_path: Path) -> None:
    """Both continue: what had ended is not repeated, and the payment has the same key again."""
    status, said = run(name, tmp_path)
    assert (status, said) == (0, ["interrupted", "looking up chair", "looking up lamp"])
    status, said = run(name, tmp_path, "approve", KILL_AT="chair")
    assert (status, said) == (-signal.SIGKILL, ["paying chair", "paying lamp"])
    status, said = run(name, tmp_path)
    assert (status, said) == (0, ["completed Both are paid back.", "paying chair"])
    status, said = run(name, tmp_path)
    assert (status, said) == (0, ["completed Both are paid back."])
    payments = (tmp_path / "payments").read_text().splitlines()
    assert len(payments) == 3
    assert len({*payments}) == 2


def code_of(name: str) -> str:
    return read(f"examples/beside/{name}_desk.py")


@pytest.mark.parametrize("name", ["milecastle", "langgraph"])
def test_page_shows_the_programs_and_counts_their_lines(name: str) -> None:
    """Fails if a program is changed and the page is not."""
    page = read(PAGE)
    (shown,) = (one for one in blocks(page) if f"beside/{name}_desk.py" in one.info)
    assert shown.text in code_of(name)
    lines = [line for line in shown.text.splitlines() if line.strip()]
    assert re.search(rf"\| lines .*{len(lines)}\b", page)
