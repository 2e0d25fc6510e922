"""Which files are watched, and how a command is run again; programs take the place of servers."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from milecastle.cli import reloading
from milecastle.cli.reloading import Interrupts, Reloader, changed, take_dev_seat, watched
from tests.postgres_cluster import wait_until

LIFE = """
import os, pathlib, signal, sys, time
lives = pathlib.Path("lives")
lives.open("a").write(os.environ["MILECASTLE_DEV_SEAT"].split(":")[2] + "\\n")
count = len(lives.read_text().splitlines())
"""
CHANGE = 'pathlib.Path(f"new{count}.py").write_text("x")\n'
STUBBORN = "signal.signal(15, signal.SIG_IGN)\n"
END = "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(600)\n"


@pytest.fixture
def reloader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Reloader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reloading, "_EVERY", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening, Interrupts() as interrupts:
        command = [sys.executable, "-c", LIFE + request.param]
        yield Reloader(tmp_path, command, listening, "token", interrupts)


def test_code_is_watched_and_nothing_else(tmp_path: Path) -> None:
    """Fails if a kind of folder is not skipped."""
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    for name in ("flow.py", "pack/part.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("env/a.py", ".git/a.py", "node_modules/a.py", "__pycache__/a.py", "runs.db"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing.py")
    assert set(watched(tmp_path)) == {"flow.py", str(Path("pack", "part.py")), "pyproject.toml"}


def test_new_changed_and_removed_files_are_changes(tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    before = watched(tmp_path)
    flow.write_text("x", encoding="utf-8")
    new = watched(tmp_path)
    assert changed(before, new) == "flow.py"
    assert changed(new, watched(tmp_path)) is None
    flow.write_text("xy", encoding="utf-8")
    assert changed(new, watched(tmp_path)) == "flow.py"
    os.utime(flow, ns=(1, 1))
    flow.unlink()
    assert changed(new, watched(tmp_path)) == "flow.py"


@pytest.mark.parametrize(
    "reloader", [f"if count < 3:\n    {CHANGE}    time.sleep(600)\n{END}"], indirect=True
)
def test_the_command_runs_again_after_each_change(
    reloader: Reloader, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if the files are read after the child starts: its own change is then missed."""
    reloader.run()
    assert Path("lives").read_text("utf-8").split() == ["token"] * 3
    said = capsys.readouterr().err
    assert said == "new1.py has changed: restarting\nnew2.py has changed: restarting\n"


@pytest.mark.parametrize(
    "reloader",
    [f"if count == 1:\n    {STUBBORN}    {CHANGE}    time.sleep(600)\n{END}"],
    indirect=True,
)
def test_a_child_that_does_not_stop_is_killed(
    reloader: Reloader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if the parent waits without end."""
    monkeypatch.setattr(reloading, "_GRACE", 0.5)
    reloader.run()
    assert "did not stop within" in capsys.readouterr().err


@pytest.mark.parametrize("reloader", [f"if count == 1:\n    sys.exit(1)\n{END}"], indirect=True)
def test_a_child_that_has_ended_is_started_after_the_next_change(
    reloader: Reloader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = list[str]()

    def say(line: str) -> None:
        said.append(line)
        Path("fixed.py").touch()

    monkeypatch.setattr(reloading, "say", say)
    reloader.run()
    assert said[0] == "the server has ended: waiting for a change of the code"
    assert said[1] == "fixed.py has changed: restarting"


def test_a_process_takes_what_its_parent_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends when the pipe closes. Fails if the variable is left to other processes."""
    assert take_dev_seat() is None
    ended = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given = f"{reader}:{os.dup(listening.fileno())}:token"
        monkeypatch.setenv("MILECASTLE_DEV_SEAT", given)
        seat = take_dev_seat()
    try:
        assert seat is not None
        assert seat.token == "token"
        assert "MILECASTLE_DEV_SEAT" not in os.environ
        seat.socket.close()
        os.close(writer)
        wait_until(lambda: ended == [signal.SIGTERM], 60)
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(reader)
