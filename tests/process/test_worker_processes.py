"""``milecastle worker --processes``: real processes, and real kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from milecastle import App
from milecastle.app.runs.submission import require_shared
from tests.every_store import Stores
from tests.postgres_cluster import wait_until
from tests.process.fleet_chaos import ROOT
from tests.process.fleet_hostile import Deed, build

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return Stores(tmp_path).url("sqlite")


@pytest.fixture
def app(url: str) -> Iterator[App[Deed]]:
    app = build().compile(store=url)
    yield app
    app.close()


@pytest.fixture
def start(url: str, app: App[Deed]) -> Iterator[Start]:
    """Starts a parent; what is left of it and its processes afterwards is killed."""
    parents: list[subprocess.Popen[str]] = []

    def start(reference: str = "tests.process.fleet_hostile:app") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "milecastle", "worker", reference, "--processes", "2"]
        more = ["--store", url, "--poll", "0.1", "--silent-after", "2"]
        parent = subprocess.Popen([*command, *more], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        parents.append(parent)
        return parent

    yield start
    for parent in parents:
        parent.kill()
        parent.communicate()
    for pid in pids(app):
        os.kill(pid, signal.SIGKILL)


def pids(app: App[Deed]) -> list[int]:
    """The worker processes that are registered and alive."""
    return sorted(pid for pid in registered(app) if is_alive(pid))


def registered(app: App[Deed]) -> list[int]:
    return [worker.owner.pid for worker in require_shared(app.store).workers()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or while it is read
        return False
    return state != "Z"


def running(app: App[Deed]) -> str | None:
    """The worker that has the thread ``t``, if its first step is committed."""
    info = app.store.thread(app.state("t").key)
    assert info is not None
    return info.worker if app.state("t").state["log"] == ["first"] else None


@pytest.mark.requirement("F2")
def test_a_killed_process_is_replaced_and_sigterm_ends_all(app: App[Deed], start: Start) -> None:
    """Fails without the restart: one worker is left."""
    parent = start()
    wait_until(lambda: len(pids(app)) == 2, 60)
    before = pids(app)
    assert parent.pid not in before
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(after := pids(app)) == 2 and before[0] not in after, 60)
    wait_until(lambda: before[1] in pids(app), 60)  # who is late for its heartbeat comes back
    after = pids(app)
    app.submit({"do": "nothing", "log": []}, "t").result(timeout=30)
    wait_until(lambda: before[0] not in registered(app), 60)
    parent.send_signal(signal.SIGTERM)
    _, said = parent.communicate(timeout=60)
    assert parent.returncode == 0, said
    assert "ended (signal 9) and is restarted" in said
    assert not any(map(is_alive, after))
    assert list(require_shared(app.store).workers()) == []


@pytest.mark.requirement("F6")
def test_processes_of_a_killed_parent_drain_and_end(app: App[Deed], start: Start) -> None:
    """The step that runs is committed and its run released. Fails without the connection."""
    parent = start()
    wait_until(lambda: len(pids(app)) == 2, 60)
    left = pids(app)
    app.submit({"do": "slow", "log": []}, "t")
    wait_until(lambda: bool(running(app)), 60)
    parent.kill()
    wait_until(lambda: not any(map(is_alive, left)), 60)
    assert app.state("t").state["log"] == ["first", "done"]
    assert list(require_shared(app.store).workers()) == []


@pytest.mark.requirement("F6")
def test_signals_to_parent_and_processes_drain(app: App[Deed], start: Start) -> None:
    """As systemd sends them. Fails if a process ends at its second reason to stop."""
    parent = start()
    wait_until(lambda: len(pids(app)) == 2, 60)
    app.submit({"do": "slow", "log": []}, "t")
    wait_until(lambda: bool(running(app)), 60)
    for pid in (parent.pid, *pids(app)):
        os.kill(pid, signal.SIGTERM)
    parent.communicate(timeout=60)
    assert parent.returncode == 0
    assert app.state("t").state["log"] == ["first", "done"]


def test_command_that_cannot_start_is_given_up(start: Start) -> None:
    """With the exit code of the process. Fails if it is restarted forever."""
    parent = start("tests.process.no_such_module:app")
    _, said = parent.communicate(timeout=60)
    assert parent.returncode == 1, said
    assert "no_such_module" in said
    assert "before any had served" in said


def test_processes_with_until_idle_are_refused(url: str) -> None:
    command = [sys.executable, "-m", "milecastle", "worker", "x:y", "--processes", "2"]
    done = subprocess.run(
        [*command, "--until-idle", "--store", url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "works with neither" in done.stderr
