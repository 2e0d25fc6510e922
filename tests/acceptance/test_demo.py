"""``milecastle demo``: a process that is really killed, and a demo that fails if it is not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from milecastle.views.documents import DemoDocument
from tests.postgres_cluster import wait_until
from tests.unit.cli.commands import Desk

LIMIT = 300
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and terminals of Unix")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


def test_the_demo_kills_a_process_and_leaves_nothing(desk: Desk) -> None:
    """Settings around it do not reach it, and it ends although nobody is at a terminal.

    Seen to fail with the environment of the caller passed on.
    """
    desk.write("planted.py", "open('PWNED', 'w').close()\nraise SystemExit")
    desk.write("pyproject.toml", '[tool.milecastle]\napp = "planted:app"\n')
    temporary = desk.folder / "temporary"
    temporary.mkdir()
    settings = {"MILECASTLE_STORE": "sqlite:///own.db", "MILECASTLE_APP": "planted:app"}
    done = subprocess.run(
        [sys.executable, "-m", "milecastle", "demo", "--json"],
        env={**os.environ, **settings, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    document = msgspec.json.decode(done.stdout, type=DemoDocument)
    assert document.exit_code == -signal.SIGKILL
    assert document.killed == ("price", "charge", "ship")
    assert document.resumed == ("ship",)
    assert list(temporary.iterdir()) == []
    assert not Path("own.db").exists()
    assert not Path("PWNED").exists()


def test_a_demo_that_loses_something_fails(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with a store that is gone with its process, the demo must not tell its story.

    Seen to fail without the comparison of exit codes and nodes.
    """
    from milecastle.cli.verbs import init

    template = desk.folder / "template"
    shutil.copytree(init._TEMPLATE, template)  # pyright: ignore[reportPrivateUsage]
    for name in ("orders.py.txt", "pyproject.toml.txt"):
        text = (template / name).read_text("utf-8")
        (template / name).write_text(text.replace("sqlite:///runs.db", "memory://"), "utf-8")
    monkeypatch.setattr(init, "_TEMPLATE", template)
    result = desk.call("demo", code=1)
    assert "the demo did not do what it should" in result.stderr
    assert "is not repeated" not in result.stdout


def test_at_a_terminal_the_web_view_opens_until_ctrl_c(desk: Desk) -> None:
    """Seen to fail with a demo that takes the web view for not installed."""
    import pty

    opened = desk.folder / "opened"
    browser = desk.write(
        "browser", f'#!/bin/sh\necho "$1" > {opened}.part; mv {opened}.part {opened}\n'
    )
    browser.chmod(0o755)
    environment = {**os.environ, "BROWSER": str(browser), "NO_COLOR": "1"}
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where tests run in the background
        os.execve(sys.executable, [sys.executable, "-m", "milecastle", "demo"], environment)
    try:
        text = _read(terminal, until=rb"serving orders on \S+(?s:.)*worker \S+ serves orders")
        wait_until(opened.exists, LIMIT)
        text += _read(terminal, until=None, ctrl_c=True)
    finally:
        os.close(terminal)
        os.kill(pid, signal.SIGHUP)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert opened.read_text().startswith("http://127.0.0.1:")
    assert re.search(rb"\$ milecastle dev .*\n.*stopped\r\n.*\r\nnext:", text, flags=re.DOTALL)


def _read(terminal: int, *, until: bytes | None, ctrl_c: bool = False) -> bytes:
    """What is written to a terminal, until it matches or is closed."""
    import select

    text, end = b"", time.monotonic() + LIMIT
    if ctrl_c:
        os.write(terminal, b"\x03")
    while until is None or not re.search(until, text):
        assert time.monotonic() < end, text
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            text += os.read(terminal, 65536)
        except OSError:  # its process has ended
            return text
    return text
