"""The first thing in the README: a process that dies, and one that goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import blocks, read


def demo() -> str:
    [block] = [block for block in blocks(read("README.md")) if "no-run" in block.info]
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


def test_the_demo_is_killed_and_goes_on(tmp_path: Path) -> None:
    tmp_path.joinpath("demo.py").write_text(demo(), encoding="utf-8")
    first = run(tmp_path)
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, "researching\n")
    second = run(tmp_path)
    assert (second.returncode, second.stdout) == (0, "a fact about walls\n"), second.stderr
