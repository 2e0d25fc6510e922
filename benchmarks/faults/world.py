"""One runtime, one fresh store, one log of effects, and the processes that work on it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from benchmarks.faults.oracle import Line, Status

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent.parent
POLL = 0.1


class Runtime(NamedTuple):
    """How a runtime is used: its adapter, its kind of store, and whose it is."""

    adapter: str
    store: str
    settings: Mapping[str, str] = {}
    peer: str = "milecastle"

    @property
    def has_workers(self) -> bool:
        """LangGraph's library leaves it to its callers to drive an order."""
        return self.peer != "langgraph"


SYNC = {"FAULTS_DURABILITY": "sync"}
RUNTIMES = {
    "milecastle-sqlite": Runtime("milecastle_graph", "sqlite"),
    "milecastle-postgres": Runtime("milecastle_graph", "postgres"),
    "milecastle-flow-sqlite": Runtime("milecastle_flow", "sqlite"),
    "milecastle-flow-postgres": Runtime("milecastle_flow", "postgres"),
    "langgraph-sqlite": Runtime("langgraph_library", "file", {}, "langgraph"),
    "langgraph-sqlite-sync": Runtime("langgraph_library", "file", SYNC, "langgraph"),
    "langgraph-postgres": Runtime("langgraph_library", "postgres", {}, "langgraph"),
    "langgraph-postgres-sync": Runtime("langgraph_library", "postgres", SYNC, "langgraph"),
    "dbos-sqlite": Runtime("dbos_library", "sqlite", {"FAULTS_EXECUTOR": "one"}, "dbos"),
    "dbos-postgres": Runtime("dbos_library", "postgres", {"FAULTS_EXECUTOR": "one"}, "dbos"),
    "temporal": Runtime("temporal_server", "temporal", {}, "temporal"),
}
CONTROLS = {
    f"control-{cheat}": Runtime("control", "file", {"FAULTS_CHEAT": cheat}, "control")
    for cheat in ("forget", "skip", "answer")
}
"""They cheat, and the oracle must catch them; they are not in the table."""


def temporal_binary() -> str | None:
    return which("temporal", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


class TemporalServer:
    """Temporal's development server with a database file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        binary = temporal_binary()
        assert binary is not None
        file = str(self._folder / "temporal.db")
        command = [binary, "server", "start-dev", "--headless", "--port", str(self.port)]
        command += ["--db-filename", file, "--log-level", "error"]
        with (self._folder / "server.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    time.sleep(1.5)  # it listens before it answers
                    return process
            time.sleep(POLL)
        raise TimeoutError("Temporal's development server did not start")

    def crash(self) -> None:
        """Kill it, and start it again on its file."""
        self.end()
        self._process = self._started()

    def end(self) -> None:
        """Kill it."""
        kill(self._process)


class World:
    """The orders of one cell of the table."""

    def __init__(self, name: str, folder: Path, store: str, **settings: str) -> None:
        self.name, self.folder = name, folder
        self.runtime = {**RUNTIMES, **CONTROLS}[name]
        self.effects = folder / "effects.jsonl"
        self.effects.touch()
        self.server: TemporalServer | None = None
        self.cluster: Cluster | None = None
        self.disk: Path | None = None
        if self.runtime.store == "temporal":
            self.server = TemporalServer(folder)
            store = f"127.0.0.1:{self.server.port}"
        self.errors: list[str] = []
        self._environment = {
            **os.environ,
            "FAULTS_EFFECTS": str(self.effects),
            "FAULTS_STORE": store,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.runtime.settings,
            **settings,
        }
        self._processes: list[subprocess.Popen[Any]] = []
        self._clerks: dict[str, subprocess.Popen[str]] = {}
        self._lock = Lock()

    def set(self, **settings: str) -> None:
        """Set environment variables of processes that are started from now on."""
        self._environment |= settings

    def spawn(self, verb: str, *given: str, **settings: str) -> subprocess.Popen[bytes]:
        """Start a process of the adapter; its output is a file of the cell."""
        module = f"benchmarks.faults.adapters.{self.runtime.adapter}"
        log = self.folder / f"{len(self._processes)}-{verb}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", module, verb, *given],
                env={**self._environment, **settings},
                cwd=self.folder,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def ask(self, verb: str, *given: str, code: str = "") -> str | None:
        """Let a client do a verb. What it printed; ``None`` if it failed (see ``errors``)."""
        with self._lock:
            stdin, stdout = pipes(self._clerk(code))
            with contextlib.suppress(BrokenPipeError):
                stdin.write(json.dumps([verb, *given]) + "\n")
                stdin.flush()
            line = stdout.readline()
        said = json.loads(line) if line else {"is_done": False, "error": "the client died"}
        if said["is_done"]:
            return str(said["printed"])
        self.errors.append(f"{verb}: {said['error']}")
        return None

    def insist(self, verb: str, *given: str, seconds: float = 30) -> bool:
        """Repeat a verb until it is acknowledged: the database may be down."""
        deadline = time.monotonic() + seconds
        while self.ask(verb, *given) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL)
        return True

    def statuses(self, orders: Sequence[str], code: str = "") -> dict[str, Status]:
        """What the runtime says of the orders."""
        printed = self.ask("status", *orders, code=code)
        if printed is None:
            return {order: {"status": "unreadable", "state": None} for order in orders}
        found: dict[str, Status] = json.loads(printed)
        return found

    def wait(
        self, orders: Sequence[str], wanted: Collection[str], seconds: float, code: str = ""
    ) -> dict[str, Status]:
        """Wait until each of the orders has one of the statuses; return the last ones seen."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.statuses(orders, code)
            is_over = all(found[order].get("status") in wanted for order in orders)
            if is_over or time.monotonic() > deadline:
                return found
            time.sleep(POLL)

    def lines(self) -> list[Line]:
        """The log of effects."""
        text = self.effects.read_text("utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def wait_for_line(self, is_it: Callable[[Line], bool], seconds: float = 30) -> bool:
        """Wait until a line of this kind is there."""
        deadline = time.monotonic() + seconds
        while not any(map(is_it, self.lines())):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def end(self) -> None:
        """Kill every process of the cell."""
        for process in (*self._processes, *self._clerks.values()):
            kill(process)
        for clerk in self._clerks.values():
            for pipe in pipes(clerk):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if self.server is not None:
            self.server.end()

    def _clerk(self, code: str) -> subprocess.Popen[str]:
        clerk = self._clerks.get(code)
        if clerk is None or clerk.poll() is not None:
            with (self.folder / "clerk.log").open("ab") as log:
                clerk = self._clerks[code] = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.faults.clerk", self.runtime.adapter],
                    env={**self._environment, "FAULTS_CODE": code},
                    cwd=self.folder,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
        return clerk


@contextmanager
def a_world(
    name: str, cluster: Cluster | None = None, disk: Path | None = None, **settings: str
) -> Generator[World]:
    """A world whose processes end, and whose files go, with the block.

    A store in a file is on ``disk``, if that is given.
    """
    kind = {**RUNTIMES, **CONTROLS}[name].store
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as made:
        at = disk or Path(made)
        store = f"{at}/store.db" if kind == "file" else f"sqlite:///{at}/store.db"
        if kind == "postgres":
            assert cluster is not None
            store = fresh_database(cluster)
        world = World(name, Path(made), store, **settings)
        world.cluster = cluster if kind == "postgres" else None
        world.disk = disk if kind in ("file", "sqlite") else None
        try:
            yield world
        finally:
            world.end()


def fresh_database(cluster: Cluster) -> str:
    """The URL of a new database."""
    from psycopg import sql

    name = f"faults_{time.time_ns()}"
    cluster.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return f"{cluster.url.rpartition('/')[0]}/{name}"


def pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    """Standard input and output of a process started with both."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its children with SIGKILL, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])
