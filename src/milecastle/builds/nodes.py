"""Nodes of file runs: declared files, parameters, key and version; and command nodes.

The declaration travels with the function: ``files(...)`` gives a partial of it that carries one,
so a function may serve several nodes with different files. While the node runs, ``root()`` is
the folder its paths are relative to.

A command node runs a program with arguments, without a shell. Its output is captured up to a
limit, the beginning and the end; in a file run it is also stored in the workspace. Messages never
contain arguments or output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from milecastle.errors import CommandFailed

if TYPE_CHECKING:
    from subprocess import Popen

_MARK: Final = "milecastle_files"

PathName = str | PathLike[str]


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Reuse a node's result while ``key(state)`` is the same, for ``ttl`` seconds.

    Without ``key`` the whole state counts; without ``ttl`` a result does not age.
    """

    key: Callable[[Any], Any] | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None and self.ttl <= 0:
            raise ValueError(f"ttl= must be positive, not {self.ttl}")


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """A node's inputs and outputs. Paths are relative to the workspace's root.

    ``reads_state`` tells if the node depends on the state; ``None`` leaves it
    to the function's parameters. ``parameters`` is anything else it depends on.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cache: Cache | None = None
    version: str | None = None
    parameters: Any = None
    reads_state: bool | None = None


def files(
    *,
    inputs: Iterable[PathName] | PathName = (),
    outputs: Iterable[PathName] | PathName = (),
    cache: Cache | None = None,
    version: str | None = None,
    parameters: Any = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the decorated node's inputs and outputs, so its work can be reused.

    ``version`` represents the node's code; without it the code itself counts, and everything that
    it refers to.
    """
    declared = Files(
        inputs=as_paths(inputs),
        outputs=as_paths(outputs),
        cache=cache,
        version=version,
        parameters=parameters,
    )
    return lambda function: declare(function, declared)


def declare(function: Callable[..., Any], declared: Files) -> Callable[..., Any]:
    """The function with a declaration; the original is unchanged."""
    carrier = partial(function)
    setattr(carrier, _MARK, declared)
    return carrier


def files_of(function: Any) -> Files | None:
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Files) else None


def as_paths(given: Iterable[PathName] | PathName) -> tuple[str, ...]:
    several = [given] if isinstance(given, str | PathLike) else given
    paths = [fspath(one).replace("\\", "/") for one in several]
    if any(not path or "\0" in path for path in paths):
        raise ValueError("the path of an input or output must not be empty or contain NUL")
    return tuple(dict.fromkeys(paths))


class CurrentRun(msgspec.Struct, frozen=True):
    """A node's current run. ``lock`` is the file whose lock excludes other runs."""

    root: Path
    lock: int | None
    keep_log: Callable[[bytes], str]


within: Final[ContextVar[CurrentRun | None]] = ContextVar("milecastle_file_run", default=None)


def current() -> CurrentRun | None:
    return within.get()


def root() -> Path:
    """The run's file root: its workspace's root, else the current folder."""
    found = within.get()
    return Path.cwd() if found is None else found.root


KEPT: Final = 256 * 1024

_GRACE: Final = 1.0

Arguments = Sequence[str | PathLike[str]]


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A command's ending: its output, and the number of omitted bytes."""

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
    """A node running a program: ``graph.add_node(command("train", ["python", "train.py"]))``.

    ``arguments`` is a list, or a function of the state that gives one. It runs in the workspace's
    root, or the current folder if there is none. ``env`` is set on top of the environment; only
    variables named there count when reuse is decided. ``update`` makes the node's update of how it
    ended. Any exit code but 0 is a failure. After ``timeout`` seconds the program is ended with
    everything it started.
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
        """Run the program to its end; ``CommandFailed`` if it fails."""
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
        """Read the output until its end; ``None`` if that did not come in time.

        The end comes when the program has exited and nothing it started can print any more.
        The program is reaped last: until then no other process group can have its number.
        """
        from subprocess import TimeoutExpired
        from threading import Thread

        deadline = None if self.timeout is None else monotonic() + self.timeout
        reader = Thread(target=captured.read, args=(process,), daemon=True)
        reader.start()
        try:
            reader.join(_left(deadline))
            if not reader.is_alive():
                return process.wait(_left(deadline))
        except TimeoutExpired:
            pass
        finally:
            if process.returncode is None:
                _end(process)
                process.wait()
        reader.join(_GRACE)  # a child in another session may hold the pipe for longer
        return None

    def _failed(
        self, exit_code: int | None, outcome: CommandOutcome, place: str | None
    ) -> CommandFailed:
        if exit_code is None:
            how = f"took longer than {self.timeout:g} s"
        elif exit_code < 0:
            how = f"was terminated by signal {-exit_code}"
        else:
            how = f"exited with code {exit_code}"
        where = f"; what it printed is in {place}" if place else ""
        return CommandFailed(
            f"the command '{self.__name__}' {how}{where}",
            command=self.__name__,
            exit_code=exit_code,
            output=outcome.output,
        )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - monotonic())


class _Captured:
    def __init__(self, keep: int) -> None:
        self._half = max(keep // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.omitted = 0

    def read(self, process: Popen[bytes]) -> None:
        if process.stdout is not None:
            with process.stdout as pipe:
                while data := os.read(pipe.fileno(), 65536):
                    self._add(data)

    def _add(self, data: bytes) -> None:
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


if sys.platform == "win32":

    def _family(lock: int | None) -> dict[str, Any]:
        return {}

    def _end(process: Popen[bytes]) -> None:
        process.kill()

else:

    def _family(lock: int | None) -> dict[str, Any]:
        """A separate session, so all of it can be ended; it inherits the run's lock."""
        return {"start_new_session": True, "pass_fds": () if lock is None else (lock,)}

    def _end(process: Popen[bytes]) -> None:
        import signal

        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # nothing is left of it but what is to be reaped
