"""A server in a process of its own, honest or with one part changed on purpose.

Run as ``python -m tests.acceptance.server.processes HOW serve ...``.
HOW may be several, with commas between them.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from milecastle.app.application import App
from milecastle.cli import reloading
from milecastle.cli.main import cli
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.server import (
    application,
    broadcasts,
    connections,
    event_stream,
    events,
    limits,
    service,
)
from milecastle.server import serving as serving_module
from tests.postgres_cluster import wait_until

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = "tests.acceptance.server.graphs:graph"
LIMIT = 60.0
FEW_FILES = 200
DIES_AT = "MILECASTLE_TEST_DIES_AT"
"""The environment variable with how many POSTs a server handles that ``dies-answering``."""


def impatient() -> None:
    """Comments come soon, and slow readers are dropped soon."""
    setattr(events, "HEARTBEAT", 0.1)  # noqa: B010 - final, except here
    setattr(event_stream, "SLOW", 3.0)  # noqa: B010


def begins_elsewhere(off: int) -> None:
    """A reader that reconnects begins so many checkpoints too late."""
    honest = broadcasts.Reader.__init__

    def begin(
        self: broadcasts.Reader, broadcast: broadcasts.Broadcast, after: int, stored: int
    ) -> None:
        honest(self, broadcast, after + (off if after else 0), stored)

    setattr(broadcasts.Reader, "__init__", begin)  # noqa: B010


def hasty() -> None:
    """A worker that is silent is considered gone soon."""

    def worker(apps: Sequence[App[Any]], _: object = None) -> Worker:
        return Worker(apps, WorkerOptions(silent_after=2.0, heartbeat=0.4))

    setattr(service, "Worker", worker)  # noqa: B010


def brisk() -> None:
    """Connections without a request, and slow bodies, are ended soon."""
    setattr(connections, "VACANT", 1.0)  # noqa: B010
    setattr(limits, "SLOWEST_BODY", 1.0)  # noqa: B010


def cramped() -> None:
    """There are few connections."""
    setattr(connections, "MANY", 100)  # noqa: B010
    setattr(serving_module, "_CONNECTIONS", 200)  # noqa: B010 - it is private


def few_files() -> None:
    """The process may have few open files."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))


def trusting() -> None:
    """Nobody looks which connections are without a request."""
    kind: Any = vars(connections)["_Connection"]
    kind._become_vacant = lambda *_: None  # pyright: ignore[reportUnknownLambdaType]


def pressed_in_a_finalizer() -> None:
    """Ctrl-C comes while Python finalizes an object, after the first look at the files."""

    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    honest = reloading.watched

    def look(folder: Path) -> Any:
        Finalized()
        setattr(reloading, "watched", honest)  # noqa: B010
        return honest(folder)

    setattr(reloading, "watched", look)  # noqa: B010


def pressed_at_the_start() -> None:
    """Ctrl-C comes right after the server process was created."""
    honest = subprocess.Popen

    def start(*args: Any, **settings: Any) -> Any:
        found = honest(*args, **settings)
        print(f"child {found.pid}", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    setattr(subprocess, "Popen", start)  # noqa: B010


def dies_answering() -> None:
    """Dies when it has handled so many POSTs, before the last one is answered."""
    honest, left = application.Application.answer, [int(os.environ[DIES_AT])]

    async def answer(self: application.Application, endpoint: Any, http: Any, held: Any) -> Any:
        response = await honest(self, endpoint, http, held)
        if http.method == "POST":
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return response

    setattr(application.Application, "answer", answer)  # noqa: B010


def counts_ids() -> None:
    """The ids of tasks are numbers."""
    from milecastle.server.mcp import tasks

    numbers = itertools.count(1)

    def numbered(_size: int) -> str:
        return str(next(numbers))

    setattr(tasks, "token_urlsafe", numbered)  # noqa: B010


def answers_first() -> None:
    """Tasks get their ids before their runs are submitted."""
    from milecastle.server.mcp import tasks, tools

    honest = tasks.Tasks.start

    def start(self: Any, caller: Any, graph: str, given: Any) -> Any:
        threading.Timer(5.0, honest, (self, caller, graph, given)).start()
        return "early", None

    async def created(self: Any, ctx: Any, caller: Any, id: str, handle: Any) -> Any:
        return {"taskId": id, "status": "working", "resultType": "task"}

    setattr(tasks.Tasks, "start", start)  # noqa: B010
    setattr(tools.GraphTools, "_created", created)  # noqa: B010


HOW: dict[str, Callable[[], None]] = {
    "honest": lambda: None,
    "impatient": impatient,
    "hasty": hasty,
    "brisk": brisk,
    "cramped": cramped,
    "trusting": trusting,
    "dies-answering": dies_answering,
    "few-files": few_files,
    "counts-ids": counts_ids,
    "answers-first": answers_first,
    "drops-one": lambda: begins_elsewhere(1),
    "doubles-one": lambda: begins_elsewhere(-1),
    "pressed-in-a-finalizer": pressed_in_a_finalizer,
    "pressed-at-the-start": pressed_at_the_start,
}


class Process:
    """A process whose log is read as it is written."""

    def __init__(self, *arguments: str, how: str = "honest", **settings: Any) -> None:
        self.arguments = arguments
        command = [sys.executable, "-m", "tests.acceptance.server.processes", how, *arguments]
        settings.setdefault("cwd", ROOT)
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **settings)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self._lines.extend(iter(self._process.stderr.readline, ""))

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def said(self, pattern: str) -> str:
        """Wait until the log has this, and return the first group of it."""
        wait_until(lambda: bool(re.search(pattern, self.log)) or self.has_ended, LIMIT)
        found = re.search(pattern, self.log)
        assert found, self.log
        return found[1] if found.groups() else found[0]

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def most_memory(self) -> int:
        """The most bytes that it had in memory so far; Linux only."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        self._process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end."""
        return self._process.wait(LIMIT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


@dataclass(frozen=True)
class Served:
    """A server, as a client that may do everything there."""

    client: httpx.Client

    def rests(self, thread: str, *statuses: str) -> Any:
        """The thread, once it has one of these statuses."""
        wanted = statuses or ("completed",)
        found: list[Any] = []

        def has_come() -> bool:
            found[:] = [self.client.get(f"/v1/threads/{thread}").json()]
            return found[0]["status"] in wanted

        try:
            wait_until(has_come, LIMIT)
        except AssertionError:
            raise AssertionError(f"it did not happen in time: {found[0]}") from None
        return found[0]


@dataclass(frozen=True)
class Server(Served):
    """A server process, and the URL that it printed."""

    process: Process
    url: str


@contextmanager
def serving(
    store: str, *options: str, how: str = "honest", reference: str = REFERENCE
) -> Generator[Server, None, None]:
    """A server on a store, on a free port of this machine."""
    process = Process("serve", reference, "--store", store, "--port", "0", *options, how=how)
    try:
        url = process.said(r"serving \w+ on (http://\S+)\n")
        found = re.search(r"token=(\S+)", process.log)
        headers = {"Authorization": f"Bearer {found[1]}"} if found else {}
        with httpx.Client(base_url=url.partition("?")[0], headers=headers, timeout=LIMIT) as client:
            wait_until(lambda: is_ready(client), LIMIT)
            yield Server(client, process, url)
    finally:
        process.kill()


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


class StreamEvent(NamedTuple):
    """One event of a stream; a comment has the name ``:``."""

    name: str
    id: int | None
    data: Any


def read_stream(response: httpx.Response) -> Iterator[StreamEvent]:
    """The events of a stream, as the specification says that they are read."""
    name, id, data = "message", None, ""
    for line in response.iter_lines():
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield StreamEvent(name, id, msgspec.json.decode(data))
            name, id, data = "message", None, ""
        elif not field:
            yield StreamEvent(":", None, value)
        elif field == "event":
            name = value
        elif field == "id":
            id = int(value)
        elif field == "data":
            data += value


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    for change in sys.argv[1].split(","):
        HOW[change]()
    cli(sys.argv[2:], prog_name="milecastle")
