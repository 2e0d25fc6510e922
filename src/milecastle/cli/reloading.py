"""Serving again whenever the code changes: the two processes of ``milecastle dev``.

Rules:

- The parent runs no user code, so no mistake in it ends the parent.
- The socket is the parent's: connections that arrive during a restart wait until it is over.
- The token stays the same, so browsers stay logged in. It is in the child's environment, and not in
  its command line, which every user on the machine can read.
- The child stops when the parent ends, also if that was killed: then a pipe between them closes.
- Ctrl-C and SIGTERM are counted, and looked at between other things. An exception would be lost
  where Python ignores them, such as in finalizers, and would leave a child that is being started.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, Final, Self

import msgspec

from milecastle.cli.printing import say

_SEAT: Final = "MILECASTLE_DEV_SEAT"
"""Tells the child the descriptors of the pipe and of the socket, and the token."""

_EVERY: Final = 0.5
_GRACE: Final = 5.0
"""Seconds between two looks at the files, and for which a child may take to stop."""

_SOON: Final = 0.05
"""Seconds between two looks at a child that stops."""

_SETTINGS: Final = "pyproject.toml"
_SKIPPED: Final = ("__pycache__", "node_modules", "site-packages")

Stamps = Mapping[str, tuple[int, int]]


def watched(folder: Path) -> Stamps:
    stamps: dict[str, tuple[int, int]] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not Path(place, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py") or name == _SETTINGS:
                path = Path(place, name)
                try:
                    found = path.stat()
                except OSError:  # it was removed, or is a link to nothing
                    continue
                stamps[str(path.relative_to(folder))] = found.st_mtime_ns, found.st_size
    return stamps


def changed(before: Stamps, after: Stamps) -> str | None:
    different = {name for name, _ in before.items() ^ after.items()}
    return min(different, default=None)


class DevSeat(msgspec.Struct, frozen=True):
    socket: Any
    token: str


def take_dev_seat() -> DevSeat | None:
    given = os.environ.pop(_SEAT, None)
    if given is None:
        return None
    pipe, listening, token = given.split(":")
    for descriptor in (int(pipe), int(listening)):
        os.set_inheritable(descriptor, False)
    Thread(target=_end_with_parent, args=(int(pipe),), daemon=True).start()
    return DevSeat(socket.socket(fileno=int(listening)), token)


def _end_with_parent(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


class Interrupts:
    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


class Reloader:
    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        listening: socket.socket,
        token: str,
        interrupts: Interrupts,
    ) -> None:
        self._folder, self._command = folder, command
        self._socket, self._token = listening, token
        self._interrupts = interrupts
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        reader, writer = os.pipe()
        try:
            while not self._interrupts.count:
                stamps = watched(self._folder)
                self._start(reader)
                if name := self._wait(stamps):
                    say(f"{name} has changed: restarting")
                self._stop()
        finally:
            self._stop()
            os.close(writer)
            os.close(reader)

    def _start(self, pipe: int) -> None:
        given = (pipe, self._socket.fileno())
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            self._command,
            env={**os.environ, _SEAT: f"{given[0]}:{given[1]}:{self._token}"},
            stdin=subprocess.DEVNULL,
            stdout=2,  # what nodes print is not the document of --json
            pass_fds=given,
            process_group=0,  # Ctrl-C reaches the parent only
        )

    def _wait(self, before: Stamps) -> str | None:
        has_ended = False
        while True:
            time.sleep(_EVERY)
            if self._interrupts.count:
                return None
            if not has_ended and self._process is not None and self._process.poll() is not None:
                has_ended = True
                say("the server has ended: waiting for a change of the code")
            if found := changed(before, watched(self._folder)):
                return found

    def _stop(self) -> None:
        """Let the child stop; if it takes too long, or on another Ctrl-C, kill it."""
        if self._process is None:
            return
        self._process.terminate()
        until = time.monotonic() + _GRACE
        while self._process.poll() is None and self._interrupts.count < 2:
            if time.monotonic() > until:
                say(f"the server did not stop within {_GRACE:.0f} seconds and is killed")
                break
            time.sleep(_SOON)
        self._process.kill()
        self._process.wait()
