"""U3: the examples that were promised are there, and run. `tests/recovery` crashes their graphs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISED = {
    "looping_graph": "limit of 20 steps",
    "human_approval": "interrupted: Refund?",
    "parallel_research": "two books on milecastles",
    "incremental_build": "9 executed, 21 reused",
    "resume_after_crash": "died in 'reserve'",
}


def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def snippets(text: str) -> list[str]:
    return re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.requirement("U3", api="examples")
@pytest.mark.parametrize("name", PROMISED)
def test_an_example_that_was_promised_runs(name: str, tmp_path: Path) -> None:
    """A loop with both guards, approval, parallel research, an incremental build, a crash."""
    told = run(ROOT / "examples" / f"{name}.py", tmp_path)
    assert told.returncode == 0, told.stderr
    assert PROMISED[name] in told.stdout


@pytest.mark.requirement("U3", api="App.invoke")
@pytest.mark.skipif(sys.platform == "win32", reason="the example kills itself with SIGKILL")
def test_the_first_example_of_the_readme_survives_kill_9(tmp_path: Path) -> None:
    """The first call is killed; the second goes on, and does not research again."""
    script = tmp_path / "demo.py"
    script.write_text(snippets((ROOT / "README.md").read_text("utf-8"))[0], "utf-8")
    first, second = run(script, tmp_path), run(script, tmp_path)
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, "researching\n")
    assert (second.returncode, second.stdout) == (0, "a fact about walls\n")


@pytest.mark.requirement("U3", api="ExecutionOptions")
def test_the_readme_shows_what_one_call_sets_for_itself() -> None:
    """Per-invoke overrides; every snippet of the page is run with the documentation."""
    found = snippets((ROOT / "README.md").read_text("utf-8"))
    assert any(
        "ExecutionOptions(max_steps=40)" in snippet and "options=options" in snippet
        for snippet in found
    )
