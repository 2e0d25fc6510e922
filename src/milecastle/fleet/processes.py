"""Several worker processes under one parent: ``milecastle worker --processes``.

Rules:

- Each process is a fresh interpreter of the same command: nothing is forked, nothing is shared.
- The parent runs no code of the user. It restarts ended processes, after a growing delay, and gives
  up if a process ends before any has served: then the command itself is wrong, or the store is
  away.
- A process drains when its connection to the parent closes, be it on purpose or because the parent
  was killed. Signals to a single process mean the same, however many arrive: a service manager may
  signal the parent and its processes. A process that must end at once is killed by the parent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from time import monotonic

from milecastle.fleet.worker import Worker

_log = logging.getLogger("milecastle.fleet")

_PLACE = "MILECASTLE_WORKER_PROCESS"
"""Tells a process its number and which file descriptor leads to the parent."""

_SHORTEST = 0.5
_LONGEST = 30.0
_STEADY = 60.0
"""Seconds before the first restart and at most; after how many a process has proved itself."""

_SERVING = b"s"


class Seat:
    def __init__(self, number: int, parent: socket.socket) -> None:
        self.number = number
        self._parent = parent

    async def serve(self, worker: Worker) -> None:
        """Run a worker until the parent, or a signal, drains it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        Thread(target=self._watch, args=(worker.stop,), daemon=True).start()
        telling = asyncio.create_task(self._tell(worker))
        try:
            await worker.run()
        finally:
            telling.cancel()
            _hang_up(self._parent)
            self._parent.close()

    async def _tell(self, worker: Worker) -> None:
        await worker.entered.wait()
        with suppress(OSError):  # the parent is gone, which the watch notices
            self._parent.send(_SERVING)

    def _watch(self, gone: Callable[[], None]) -> None:
        with suppress(OSError):
            self._parent.recv(1)
        gone()


def take_seat() -> Seat | None:
    given = os.environ.pop(_PLACE, None)
    if given is None:
        return None
    number, _, descriptor = given.partition(":")
    parent = socket.socket(fileno=int(descriptor))
    parent.set_inheritable(False)
    return Seat(int(number), parent)


class Processes:
    """Keeps ``count`` processes of this command running. Call ``run`` once."""

    def __init__(self, count: int, command: list[str] | None = None) -> None:
        self._count = count
        self._command = command or [sys.executable, *sys.orig_argv[1:]]
        self._stopping = asyncio.Event()
        self._have_served = False
        self._running: dict[int, tuple[asyncio.subprocess.Process, socket.socket]] = {}
        self._exit_code = 0

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT, and until all have drained; the exit code.

        A second signal ends all processes at once.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        await asyncio.gather(*map(self._keep, range(self._count)))
        return self._exit_code

    def _signalled(self, number: int) -> None:
        if not self._stopping.is_set():
            self._stop()
            return
        self._exit_code = 128 + number
        for process, _ in self._running.values():
            process.kill()

    def _stop(self) -> None:
        self._stopping.set()
        for _, connection in self._running.values():
            _hang_up(connection)

    async def _keep(self, number: int) -> None:
        delay = _SHORTEST
        while not self._stopping.is_set():
            started = monotonic()
            code = await self._run_one(number)
            if self._stopping.is_set():
                return
            if not self._have_served:
                self._give_up(number, code)
                return
            delay = _SHORTEST if monotonic() - started > _STEADY else delay
            _log.error(
                "worker process %d ended (%s) and is restarted in %.1f seconds",
                number,
                _described(code),
                delay,
            )
            try:
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            except TimeoutError:
                delay = min(_LONGEST, delay * 2)

    def _give_up(self, number: int, code: int) -> None:
        _log.error(
            "worker process %d ended (%s) before any had served: the others stop, too. Its own "
            "message is above",
            number,
            _described(code),
        )
        self._exit_code = 128 - code if code < 0 else code or 1
        self._stop()

    async def _run_one(self, number: int) -> int:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, _PLACE: f"{number}:{theirs.fileno()}"},
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C reaches the parent only
            )
            theirs.close()
            self._running[number] = process, ours
            if self._stopping.is_set():
                _hang_up(ours)
            listening = asyncio.create_task(self._listen(ours))
            try:
                return await process.wait()
            finally:
                del self._running[number]
                listening.cancel()

    async def _listen(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if await asyncio.get_running_loop().sock_recv(connection, 1) == _SERVING:
                self._have_served = True


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # the process has ended
        connection.shutdown(socket.SHUT_RDWR)


def _described(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
