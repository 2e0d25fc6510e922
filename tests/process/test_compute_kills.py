"""A map in processes repeats what was in flight when one, or the driver, is killed (kill -9)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.process.compute_worker import PARALLEL

ITEMS = 200
KILLS = int(os.environ.get("MILECASTLE_COMPUTE_KILLS", "1"))


def begun(folder: Path) -> list[tuple[str, int]]:
    """The items that were begun so far, each with its process."""
    notes = folder / "notes"
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines if len(line.split()) == 2]


def run(folder: Path, kill_at: int | None, kill: Callable[[subprocess.Popen[bytes]], None]) -> int:
    """Run the map; call ``kill`` once so many items were begun."""
    arguments = [f"sqlite:///{folder}/runs.db", str(folder / "notes"), str(ITEMS)]
    process = subprocess.Popen([sys.executable, "-m", "tests.process.compute_worker", *arguments])
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if kill_at is not None and len(begun(folder)) >= kill_at:
            kill(process)
            kill_at = None
        time.sleep(0.005)
    return process.wait(60)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes in /proc")
def test_killed_driver_repeats_what_was_in_flight_and_leaves_no_process(tmp_path: Path) -> None:
    """Fails if the processes outlast their driver, or an outcome is not committed as it comes."""
    for number in range(KILLS):
        at = (number + 1) * ITEMS // (KILLS + 1)
        assert run(tmp_path, at, lambda process: process.kill()) == -9
        pids = {pid for _, pid in begun(tmp_path)}
        end = time.monotonic() + 60
        while any(map(is_alive, pids)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(is_alive, pids))
    assert run(tmp_path, None, lambda process: None) == 0
    counts = Counter(item for item, _ in begun(tmp_path))
    assert set(counts) == {str(number) for number in range(ITEMS)}
    assert sum(counts.values()) - ITEMS <= KILLS * PARALLEL


def test_killed_processes_repeat_one_item_each(tmp_path: Path) -> None:
    """Fails if a killed process takes the items with it that it had not started."""
    killed: list[int] = []

    def kill(_: subprocess.Popen[bytes]) -> None:
        killed.append(begun(tmp_path)[-1][1])
        os.kill(killed[0], signal.SIGKILL)

    assert run(tmp_path, ITEMS // 3, kill) == 0
    counts = Counter(item for item, _ in begun(tmp_path))
    assert set(counts) == {str(number) for number in range(ITEMS)}
    assert sum(counts.values()) - ITEMS <= len(killed) == 1
