"""The pool that runs the tests of CI: it runs each once, and reports those that fail or die."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import os, signal
from pathlib import Path
import pytest

PARENT = os.getpid()

@pytest.mark.parametrize("number", range(50))
def test_sound(number, tmp_path):
    assert os.getpid() != PARENT
    with Path("ran").open("a") as file:
        file.write(f"{number}\\n")

def test_wrong():
    print("what it printed")
    assert os.getpid() == PARENT, "it is not"

@pytest.mark.skip(reason="no need")
def test_left_out():
    pass

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_each_test_runs_once_and_those_that_fail_or_die_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.pool", "--pool", "3", "-ra"]
    ended = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-p", "no:schemathesis", str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "2 failed, 50 passed, 1 skipped" in ended.stdout
    assert "no need" in ended.stdout
    assert "what it printed" in ended.stdout
    assert "it is not" in ended.stdout
    assert "the process that ran this test ended with -9" in ended.stdout
    assert sorted(map(int, (tmp_path / "ran").read_text().split())) == list(range(50))
    failed = (tmp_path / ".pytest_cache/v/cache/lastfailed").read_text()
    assert "test_wrong" in failed
    assert "test_dies" in failed


def test_a_commit_runs_its_share(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.pool", "--one-in", "10", "-k", "sound"]
    ended = subprocess.run(
        [
            *command,
            "--pool",
            "2",
            "--rootdir",
            str(tmp_path),
            "-p",
            "no:schemathesis",
            str(tmp_path),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "MILECASTLE_SEED": "13"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "5 passed, 48 deselected" in ended.stdout, ended.stdout + ended.stderr
    assert sorted(map(int, (tmp_path / "ran").read_text().split())) == [3, 13, 23, 33, 43]
