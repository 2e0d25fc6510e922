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


def test_the_quickstart_is_killed_while_it_pays_and_goes_on(tmp_path: Path) -> None:
    """Fails if the second process asks again, looks the order up again, or does not pay."""
    block = next(block for block in blocks(read("README.md")) if block.info == "python")
    tmp_path.joinpath("demo.py").write_text(block.text, encoding="utf-8")
    first = run(tmp_path)
    assert first.stdout == "looking up 1041\ninterrupted \n", first.stderr
    command = [sys.executable, "demo.py", "approve"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as paying:
        assert paying.stdout is not None
        assert paying.stdout.readline() == "paying 40\n"
        paying.kill()
    end = "completed I am sorry about the lamp: 40 paid back.\n"
    assert [run(tmp_path).stdout for _ in range(2)] == [f"paying 40\n{end}", end]
