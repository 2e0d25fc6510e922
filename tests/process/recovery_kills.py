"""Kills the example build at random moments, resumes it, and says what became of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from examples.incremental_build import lay_out
from milecastle.builds import Workspace

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = ("raw", "clean", "features", "models", "scores", "report.txt")


def start(folder: Path, mode: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.process.recovery_build", str(folder), mode, *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(printed)
    return told


def contents(folder: Path) -> dict[str, bytes]:
    """Every output of the build, byte by byte."""
    tops = [folder / name for name in OUTPUTS]
    paths = [path for top in tops for path in (top, *top.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def left_behind(folder: Path) -> tuple[str, set[str]]:
    """The status of the folder's run, and the nodes whose checkpoint it has written."""
    workspace = Workspace(folder / ".milecastle")
    [record] = workspace.runs([])
    return record.status, set(workspace.checkpoints(record.run_id, []))


def wait_for_a_run(folder: Path, process: subprocess.Popen[str]) -> None:
    runs = folder / ".milecastle" / "runs"
    while process.poll() is None and not any(runs.glob("*/run.json")):
        time.sleep(0.002)


def kill_once(folder: Path, after: float, *options: str) -> bool:
    """Start a clean run and kill it; whether it was still at work then."""
    process = start(folder, "clean", *options)
    wait_for_a_run(folder, process)
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return left_behind(folder)[0] == "running"


def kill_often(place: Path, kills: int, seed: int, *options: str) -> dict[str, int]:
    """Kill that many runs, each in its own folder, and resume each."""
    chance = random.Random(seed)
    whole = place / "whole"
    lay_out(whole)
    process = start(whole, "clean")
    wait_for_a_run(whole, process)
    begun = time.monotonic()
    finish(process)
    longest = time.monotonic() - begun
    expected = contents(whole)
    counted = ("kills", "ended", "refused", "wrong", "forgotten", "reused", "again", "repeated")
    found: dict[str, int] = dict.fromkeys(counted, 0)
    for number in range(kills):
        folder = place / str(number)
        lay_out(folder)
        killed = kill_once(folder, chance.uniform(0, longest * 0.7), *options)
        found["kills" if killed else "ended"] += 1
        if killed:
            _resume(folder, expected, found)
    return found


def _resume(folder: Path, expected: dict[str, bytes], found: dict[str, int]) -> None:
    _, complete = left_behind(folder)
    told = finish(start(folder, "resume-only"))
    if "refused" in told:
        found["refused"] += bool(complete)  # without a checkpoint there is nothing to resume
        return
    found["reused"] += len(told["reused"])
    found["forgotten"] += bool(complete - set(told["reused"]))
    found["wrong"] += contents(folder) != expected
    if not found["again"]:  # after the end, once: nothing is left to do
        found["again"] = 1
        found["repeated"] += bool(finish(start(folder, "incremental"))["executed"])
