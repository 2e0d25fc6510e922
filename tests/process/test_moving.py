"""The programs of the "Coming from" pages, before and after, each killed once (kill -9).

Both programs of a pair run in real processes, the one before with the real library, and must print
the same JSON. The counts of requests are the ones that the pages state.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.postgres_cluster import free_port

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
TEMPORAL = shutil.which("temporal", path=sysconfig.get_path("scripts")) or shutil.which("temporal")

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="programs are killed"),
]


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip where the library is missing. It is not imported here: the programs do that."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


class Program:
    """A program of `examples/moving`, run in a folder."""

    def __init__(self, name: str, folder: Path, **environment: str) -> None:
        self.script = ROOT / "examples" / "moving" / f"{name}.py"
        self.folder = folder / name
        self.folder.mkdir()
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}

    def start(self, *words: str, **disturbed: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(self.script), *words],
            cwd=self.folder,
            env={**self.environment, **disturbed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **disturbed: str) -> str:
        return printed(self.start(*words, **disturbed))

    def killed(self, *words: str, **disturbed: str) -> None:
        dies(self.start(*words, **disturbed))

    @property
    def requests(self) -> Counter[str]:
        """How many requests of each kind the services received."""
        file = self.folder / "requests.jsonl"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return Counter(json.loads(line)["kind"] for line in lines)


def printed(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=SECONDS)
    # Temporal's library sometimes aborts Python while that ends, after the program did everything.
    aborted = process.returncode == -signal.SIGABRT and "finalizing" in err
    assert process.returncode == 0 or aborted, err
    return out


def dies(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == -signal.SIGKILL, err


def until(done: Callable[[], Any]) -> None:
    limit = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.1)


# -- LangGraph -----------------------------------------------------------------------------


def ask_the_desk(desk: Program) -> list[Any]:
    """What it prints: after the question, after the first answer, and after the kill."""
    said = [desk.run("ask", "My lamp arrived broken."), desk.run("answer", "yes")]
    desk.killed("answer", "no", KILL_AT="close")
    return [json.loads(line) for line in [*said, desk.run("resume")]]


@needs("langgraph", "langchain_core")
def test_agent_gives_the_same_result_on_langgraph_and_here(tmp_path: Path) -> None:
    """Fails if a before or an after program asks, answers or acts differently."""
    before, after = (Program(f"langgraph_{when}", tmp_path) for when in ("before", "after"))
    said = ask_the_desk(before)
    assert said[-1]["answer"] == "Your ticket is closed. Refund: refund done."
    assert said == ask_the_desk(after)
    assert before.requests == {"refund": 1, "mail": 2, "close": 1}  # the node was repeated
    assert after.requests == {"refund": 1, "mail": 1, "close": 1}  # `ctx.once`


# -- DBOS ----------------------------------------------------------------------------------


@needs("dbos")
def test_order_gives_the_same_result_on_dbos_and_here(tmp_path: Path) -> None:
    """Fails if a step is missing, or if the retry after the kill does not work."""
    before, *ours = (
        Program(f"dbos_{when}", tmp_path, DOWN_AT="charge") for when in ("before", "after", "flow")
    )
    before.killed("run", KILL_AT="charge")
    waiting = before.start("run")
    until(lambda: before.requests["charge"])
    before.run("approve")
    theirs = json.loads(printed(waiting))

    for after in ours:
        after.killed("run", KILL_AT="charge")
        assert after.run("run") == ""  # it has asked, and no process waits
        assert json.loads(after.run("approve")) == theirs
        assert after.requests == before.requests
    assert theirs["parcel"] == "ship order-7-ship"
    assert before.requests == {"reserve": 2, "charge": 1, "ship": 1}


# -- Temporal ------------------------------------------------------------------------------


@contextmanager
def temporal_server(folder: Path) -> Generator[str]:
    """The address of a development server that stores its histories in a file."""
    assert TEMPORAL
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    options = ["--headless", "--ip", host, "--port", port, "--log-level", "error"]
    server = subprocess.Popen(
        [TEMPORAL, "server", "start-dev", *options, "--db-filename", str(folder / "temporal.db")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    asked = [TEMPORAL, "operator", "namespace", "describe", "default", "--address", address]
    try:
        until(lambda: subprocess.run(asked, capture_output=True, check=False).returncode == 0)
        yield address
    finally:
        server.terminate()
        server.wait(SECONDS)


def publish_with_two_workers(program: Program) -> Any:
    """The result: the first worker is killed while it publishes, the second one finishes."""
    first = program.start("worker", KILL_AT="publish", DOWN_AT="translate")
    workers = [first]
    try:
        program.run("start")
        waiting = program.start("approve")
        dies(first)
        workers.append(program.start("worker"))
        return json.loads(printed(waiting))
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


@needs("temporalio")
@pytest.mark.skipif(not TEMPORAL, reason="the server of Temporal is not installed")
def test_publishing_gives_the_same_result_on_temporal_and_here(tmp_path: Path) -> None:
    """Fails if a worker that is started after the kill does not finish, or finishes differently."""
    with temporal_server(tmp_path) as address:
        before = Program("temporal_before", tmp_path, TEMPORAL_ADDRESS=address)
        theirs = publish_with_two_workers(before)
    for after in ("temporal_after", "temporal_flow"):
        assert publish_with_two_workers(Program(after, tmp_path)) == theirs
    assert theirs["url"] == "publish walls-publish"
