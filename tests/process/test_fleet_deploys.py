"""F6: rolling deploys under load, with old and new code beside each other, lose and repeat nothing.

``MILECASTLE_DEPLOYS`` is the number of deploys, ``MILECASTLE_DELAY`` how many seconds a run may
wait in one place: 2 in the long form; a busy machine of CI is given more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from milecastle import App
from milecastle.records import Handle
from milecastle.stores.postgres import PostgresStore
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster
from tests.process.fleet_chaos import ROOT, until
from tests.process.fleet_versions import GRACE, LONG, Trip, version

DEPLOYS = int(os.environ.get("MILECASTLE_DEPLOYS", "3"))
DELAY = float(os.environ.get("MILECASTLE_DELAY", "15"))
WORKERS = 2


class Rolling:
    """Worker processes that are replaced, one after the other, by those of the next version."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._started = 0
        self.starts = folder / "starts"
        self.store = PostgresStore(url)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.leaving: list[subprocess.Popen[bytes]] = []

    def start(self, number: int) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it serves."""
        self._started += 1
        known = {worker.id for worker in self.store.workers()}
        with (self._folder / f"worker-{self._started}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.process.fleet_versions", self._url, str(number)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "MILECASTLE_TEST_STARTS": str(self.starts)},
            )
        until(lambda: bool({worker.id for worker in self.store.workers()} - known))
        return process

    def deploy(self, number: int) -> None:
        """Replace every worker; an old one drains while the new one runs."""
        for place in range(WORKERS):
            new = self.start(number)
            if place < len(self.processes):
                old, self.processes[place] = self.processes[place], new
                old.send_signal(signal.SIGTERM)
                self.leaving.append(old)
            else:
                self.processes.append(new)

    def end(self) -> list[int]:
        """Drain every worker; how they ended."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(GRACE + 30) for process in (*self.leaving, *self.processes)]


class Load(threading.Thread):
    """Submits a run of the current version every 100 ms until it is told to stop."""

    def __init__(self, app: App[Trip]) -> None:
        super().__init__(daemon=True)
        self.app = app
        self.enough = threading.Event()
        self.submitted: list[tuple[float, Handle[Trip]]] = []

    def run(self) -> None:
        while not self.enough.wait(0.1):
            began = time.time()
            handle = self.app.submit(_start(), f"run {len(self.submitted)}")
            self.submitted.append((began, handle))


def _start(*, long: bool = False) -> Trip:
    return {"long": long, "times": []}


def waits(began: float, times: list[float]) -> list[float]:
    """For how long a run waited before each of its nodes."""
    ends = [began, *times[1::2]]
    return [start - end for start, end in zip(times[::2], ends, strict=False)]


@needs_postgres
@pytest.mark.requirement("F6")
def test_rolling_deploys_fail_delay_and_repeat_nothing(tmp_path: Path) -> None:
    """Fails if a drained worker keeps its runs until it is silent, or cancels its long node."""
    url = the_cluster().url_of(new_schema())
    rolling = Rolling(url, tmp_path)
    rolling.deploy(0)
    load = Load(version(0, rolling.store))
    load.start()
    try:
        long = load.app.submit(_start(long=True), "long")
        until(rolling.starts.exists)
        for number in range(1, DEPLOYS + 1):
            rolling.deploy(number)
            load.app = version(number, rolling.store)
        load.enough.set()
        load.join()
        assert len(long.result(timeout=LONG + 60).state["times"]) == 8
        delays = [
            wait
            for began, handle in load.submitted
            for wait in waits(began, handle.result(timeout=60).state["times"])
        ]
    finally:
        ended = rolling.end()
    assert set(ended) == {0}
    assert rolling.starts.read_text("utf-8").splitlines() == ["began"]
    print(f"{DEPLOYS} deploys, {len(load.submitted)} runs, longest wait {max(delays):.2f} s")
    assert max(delays) < DELAY
    rolling.store.close()
