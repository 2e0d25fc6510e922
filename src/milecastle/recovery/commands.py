"""Command nodes: a program with arguments, as a node like any other.

No shell is involved. What the program prints is captured within bounds, the beginning and the
end; in a file run it is also kept in the workspace. Neither arguments nor what is printed ever
stand in a message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from milecastle.errors import CommandFailed
from milecastle.recovery.current import current
from milecastle.recovery.declarations import Cache, Files, PathName, as_paths

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = ["CommandNode", "CommandOutcome", "command"]

KEPT: Final = 256 * 1024

Arguments = Sequence[str | PathLike[str]]


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended: what it printed, and how many bytes of that were left out."""

    exit_code: int
    output: str
    omitted: int
    seconds: float


def command(
    name: str,
    arguments: Arguments | Callable[[Any], Arguments],
    *,
    inputs: Iterable[PathName] | PathName = (),
    outputs: Iterable[PathName] | PathName = (),
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    update: Callable[[CommandOutcome], Mapping[str, Any] | None] | None = None,
    cache: Cache | None = None,
    version: str = "",
    keep: int = KEPT,
) -> CommandNode:
    """A node that runs a program: ``graph.add_node(command("train", ["python", "train.py"]))``.

    ``arguments`` is a list, or a function of the state that gives one. It runs in the workspace's
    root, or the current folder if there is none. ``env`` is set on top of the environment; only
    what is named there counts when reuse is decided. ``update`` makes the node's update of how it
    ended. Any exit code but 0 is a failure.
    """
    return CommandNode(
        name=name,
        arguments=arguments if callable(arguments) else tuple(fspath(one) for one in arguments),
        env=dict(env or {}),
        timeout=timeout,
        update=update,
        keep=keep,
        files=Files(
            inputs=as_paths(inputs),
            outputs=as_paths(outputs),
            cache=cache,
            version=version or None,
            reads_state=callable(arguments),
        ),
    )


class CommandNode:
    """A program as a node; made by ``command``."""

    def __init__(
        self,
        *,
        name: str,
        arguments: tuple[str, ...] | Callable[[Any], Arguments],
        env: dict[str, str],
        timeout: float | None,
        update: Callable[[CommandOutcome], Mapping[str, Any] | None] | None,
        keep: int,
        files: Files,
    ) -> None:
        self.__name__ = name
        self.arguments = arguments
        self.env = env
        self.timeout = timeout
        self.update = update
        self.keep = keep
        self.milecastle_files = files

    def __call__(self, state: Any) -> Mapping[str, Any] | None:
        """Run the program to its end; ``CommandFailed`` if that was no good one."""
        arguments = self.arguments
        given = arguments(state) if callable(arguments) else arguments
        outcome = self._run([fspath(one) for one in given])
        return None if self.update is None else self.update(outcome)

    def _run(self, arguments: list[str]) -> CommandOutcome:
        import subprocess

        run = current()
        captured = _Captured(self.keep)
        start = monotonic()
        try:
            process = subprocess.Popen[bytes](
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=run.root if run else None,
                env={**os.environ, **self.env} if self.env else None,
                **_family(run.lock if run else None),
            )
        except OSError as error:
            raise CommandFailed(
                f"the command '{self.__name__}' could not be started: {error.strerror}",
                command=self.__name__,
                exit_code=None,
            ) from error
        exit_code = self._follow(process, captured)
        outcome = CommandOutcome(
            exit_code=exit_code or 0,
            output=captured.text(),
            omitted=captured.omitted,
            seconds=monotonic() - start,
        )
        place = run.keep_log(captured.data()) if run else None
        if exit_code != 0:
            raise self._failed(exit_code, outcome, place)
        return outcome

    def _follow(self, process: Popen[bytes], captured: _Captured) -> int | None:
        """Read what is printed until the end; ``None`` if that did not come in time."""
        from threading import Timer

        late: list[bool] = []

        def stop() -> None:
            late.append(True)
            _end(process)

        timer = Timer(self.timeout, stop) if self.timeout is not None else None
        try:
            if timer is not None:
                timer.start()
            if process.stdout is not None:
                with process.stdout:
                    while data := os.read(process.stdout.fileno(), 65536):
                        captured.add(data)
            exit_code = process.wait()
        except BaseException:
            _end(process)
            process.wait()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return None if late else exit_code

    def _failed(
        self, exit_code: int | None, outcome: CommandOutcome, place: str | None
    ) -> CommandFailed:
        how = f"took longer than {self.timeout:g} s" if exit_code is None else _ending(exit_code)
        where = f"; what it printed is in {place}" if place else ""
        return CommandFailed(
            f"the command '{self.__name__}' {how}{where}",
            command=self.__name__,
            exit_code=exit_code,
            output=outcome.output,
        )


class _Captured:
    """The beginning and the end of what is printed, never more than ``keep`` bytes."""

    def __init__(self, keep: int) -> None:
        self._half = max(keep // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.omitted = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self.omitted += excess

    def data(self) -> bytes:
        gap = b"\n... %d bytes left out ...\n" % self.omitted if self.omitted else b""
        return bytes(self._head) + gap + bytes(self._tail)

    def text(self) -> str:
        return self.data().decode("utf-8", "replace")


def _ending(exit_code: int) -> str:
    if exit_code < 0:
        return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code}"


if sys.platform == "win32":

    def _family(lock: int | None) -> dict[str, Any]:
        return {}

    def _end(process: Popen[bytes]) -> None:
        process.kill()

else:

    def _family(lock: int | None) -> dict[str, Any]:
        """A session of its own, so that all of it can be ended; it inherits the run's lock."""
        return {"start_new_session": True, "pass_fds": () if lock is None else (lock,)}

    def _end(process: Popen[bytes]) -> None:
        import signal

        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
