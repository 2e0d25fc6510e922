"""A pool whose processes are threads of this one: what runs in a child is traced like the rest."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any

from milecastle import App, StateGraph
from milecastle.compute.executor_choice import ExecutorChoice
from milecastle.compute.messages import Ready, encode
from milecastle.compute.processes import Process, ProcessPool
from milecastle.compute.task_client import Site
from milecastle.compute.task_server import Server
from milecastle.drivers.local import LocalExecutors


class ThreadProcess:
    """Serves a pipe in a thread. ``kill`` cuts the pipe: the thread cannot answer any more."""

    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe = pipe
        self.server = Server(pipe)
        self._socket = socket.socket(fileno=os.dup(pipe.fileno()))
        self.exitcode: int | None = None
        self.kills = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self.server.serve(lambda: None)
        self.exitcode = 0 if self.exitcode is None else self.exitcode
        self._pipe.close()
        self._socket.close()

    def join(self, timeout: float | None = None) -> None:
        if self.exitcode is None:
            self._thread.join(timeout)

    def kill(self) -> None:
        self.exitcode = -9
        self.kills += 1
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class Stillborn:
    """Ends before it takes a task."""

    def __init__(self, pipe: connection.Connection) -> None:
        pipe.close()
        self.exitcode: int | None = 1

    def join(self, timeout: float | None = None) -> None:
        """It has ended."""

    def kill(self) -> None:
        """It has ended."""


class HalfSaid:
    """Takes tasks, and stops within its first message after that."""

    def __init__(self, pipe: connection.Connection) -> None:
        self.pipe = pipe
        self.exitcode: int | None = None
        self.said = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        self.pipe.send_bytes(encode([Ready()]))
        self.pipe.recv_bytes()
        os.write(self.pipe.fileno(), struct.pack("!i", 1000) + b"half")
        self.said.set()

    def join(self, timeout: float | None = None) -> None:
        """It ends only by being killed."""

    def kill(self) -> None:
        self.exitcode = -9
        self.pipe.close()


@contextmanager
def pool_of(
    most: int = 2, start: Callable[[connection.Connection], Process] = ThreadProcess
) -> Generator[tuple[ProcessPool, list[Any]]]:
    """A pool, and the processes that it has started."""
    started: list[Any] = []

    def begin(pipe: connection.Connection) -> Process:
        started.append(start(pipe))
        found: Process = started[-1]
        return found

    pool = ProcessPool(most, begin)
    try:
        yield pool, started
    finally:
        for process in started:
            process.kill()
        pool.close()


def app_on(site: Site, graph: StateGraph[Any], **options: Any) -> App[Any]:
    """An app whose remote nodes all run on this site."""
    given: dict[str, Any] = {"store": "memory://", **options}
    app = graph.compile(**given)
    runner = app.runner
    local = LocalExecutors((app.graph,), runner.settings.observers)
    placed = ExecutorChoice(local, app.graph, lambda run_on: site)
    runner.executors = placed
    return app


def app_here(graph: StateGraph[Any], **options: Any) -> App[Any]:
    """The same app with every node in this process."""
    given: dict[str, Any] = {"store": "memory://", **options}
    app = graph.compile(**given)
    runner = app.runner
    local = LocalExecutors((app.graph,))
    runner.executors = local
    return app
