"""The first programs of the pages, pasted into a file and run as a new user would."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import blocks, read


def demo() -> str:
    page = read("docs/how-to/resume-after-failure.md")
    [block] = [block for block in blocks(page) if "no-run" in block.info]
    return block.text


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "demo.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_demo_is_killed_and_resumes(tmp_path: Path) -> None:
    tmp_path.joinpath("demo.py").write_text(demo(), encoding="utf-8")
    first = run(tmp_path)
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, "researching\n")
    second = run(tmp_path)
    assert (second.returncode, second.stdout) == (0, "a fact about walls\n"), second.stderr


def test_the_quickstart_runs_when_pasted_and_runs_again(tmp_path: Path) -> None:
    """Seen to fail with the page as it was: the second run found no interrupt to print."""
    block = next(block for block in blocks(read("README.md")) if block.info == "python")
    tmp_path.joinpath("demo.py").write_text(block.text, encoding="utf-8")
    first, second = run(tmp_path), run(tmp_path)
    assert first.stdout == "Publish? ['a fact about walls']\ncompleted True\n", first.stderr
    assert second.stdout == "completed True\n", second.stderr
