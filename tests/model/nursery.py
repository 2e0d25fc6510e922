"""Forks worker processes: importing takes a second, and forking takes none.

Run as ``python -m tests.model.nursery``. Each line of its input is a worker to start, as JSON; it
answers with the pid. Its children end with it. SIGUSR1 sets a worker's clock.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from milecastle.app.clock import SystemClock
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.stores.opening import find_store, with_objects
from tests.model.buckets import NotedBuckets
from tests.model.graphs import GRAPHS, STAGE, World, app_of
from tests.model.hooks import receiving
from tests.model.people import ROLLUP_AFTER

__all__ = ["FileWorld", "open_store"]

_PR_SET_PDEATHSIG = 1


class FileWorld:
    """What nodes do, written to a file in a folder that all processes share."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file = os.open(f"{folder}/effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, place: str) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {os.getpid()} {what} {place}\n".encode())

    def now(self) -> int:
        return time.monotonic_ns()

    def fails(self, place: str, times: int) -> bool:
        for number in range(times):
            path = f"{self._folder}/{place.replace('/', '.')}.{number}"
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False

    def pay(self, connection: Any, place: str) -> None:
        connection.execute("INSERT INTO model_payments VALUES (%s)", (place,))
        self.note("paid", place)


def let_clock_jump() -> None:
    """SIGUSR1 sets the clock of this process wrong, by up to ten seconds."""
    ahead = [0]
    honest = SystemClock.now

    def now(self: SystemClock) -> int:
        return honest(self) + ahead[0]

    def jump(*_: object) -> None:
        ahead[0] = random.randint(-10_000_000, 10_000_000)

    SystemClock.now = now  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, jump)


def open_store(url: str, objects: str | None) -> Any:
    """A store, perhaps with an archive."""
    store: Any = find_store(url)
    if objects:
        store.rollup_after = ROLLUP_AFTER
    return with_objects(store, objects)


def note_turns(stores: Any, world: World) -> None:
    """Let the buckets of these stores be noted."""
    honest = stores.buckets.fget
    stores.buckets = property(lambda self: NotedBuckets(honest(self), self.now, world.note))


def work(wanted: dict[str, Any]) -> None:
    """Be a worker."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(f"{wanted['folder']}/{wanted['name']}.log", os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(log, number)
    logging.basicConfig(level=logging.WARNING)
    random.seed()
    let_clock_jump()
    STAGE.world = FileWorld(wanted["folder"])
    store = open_store(wanted["url"], wanted["objects"])
    note_turns(type(store), STAGE.world)
    options = WorkerOptions(**wanted["options"])
    shape = {"mails": wanted["mails"], "hooks": wanted["hooks"]}
    apps = [app_of(name, store, wanted["interval"], **shape) for name in GRAPHS]
    with receiving(STAGE.world):
        asyncio.run(Worker(apps, options).run_until_signalled())


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in GRAPHS:
        app_of(name, mails=True)
    Path("/dev/null").touch()
    for line in sys.stdin:
        wanted = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                work(wanted)
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
