"""A pool of processes on this machine, shared by all calls of this process.

Rules:

- Each process is a fresh interpreter: nothing is forked. It imports the module of the app.
- One thread reads what all of them send. It gives each the next tasks at once, so that a process
  does not wait for the driver: short tasks are queued ahead at a process, long ones are not.
- If a process ends, the task that it ran is lost and counts as an attempt. Those that it had not
  started are given to others.
- A process whose task is over and does not stop within ``GRACE`` seconds is killed.
- A process that ends before it could take a task fails what waits: the next would end as well.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import connection
from threading import Lock, RLock, Thread
from time import monotonic
from typing import Any, Final, Protocol

from milecastle.compute.far_side import GRACE, serve
from milecastle.compute.messages import (
    AskReply,
    Began,
    Cancel,
    Done,
    Forget,
    FromTasks,
    Ready,
    ToTasks,
    decode_from_tasks,
    encode,
    pack_raised,
)
from milecastle.compute.remote_tasks import RemoteTask, RemoteTasks
from milecastle.errors import InvalidRequest
from milecastle.model.forking import call_in_child

_AHEAD: Final = 0.02
"""Tasks that take this many seconds together are queued at a process beyond the one it runs."""

_MOST_AHEAD: Final = 32

_PATIENCE: Final = 5.0
"""How many seconds the processes have to end with this one."""


class Process(Protocol):
    """A process that was launched, as ``multiprocessing`` has it."""

    @property
    def exitcode(self) -> int | None:
        """How it ended; ``None`` while it runs."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


def launch(pipe: connection.Connection) -> Process:
    """Start a process that serves this pipe."""
    from multiprocessing import get_context

    process = get_context("spawn").Process(target=serve, args=(pipe,), name="milecastle-node")
    process.start()
    pipe.close()
    return process


class _Child:
    """One process. ``tasks`` are those it was sent and has not finished; it runs the first."""

    def __init__(self, process: Process, pipe: connection.Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.tasks: deque[RemoteTask] = deque()
        self.bases: dict[int, int] = {}
        self.ready = False
        self.mean = _AHEAD
        self.kill_at: float | None = None

    @property
    def room(self) -> int:
        """How many more tasks it may be sent."""
        most = 1 + min(_MOST_AHEAD, int(_AHEAD / max(self.mean, 1e-6))) if self.ready else 1
        return most - len(self.tasks)

    def send(self, messages: list[ToTasks]) -> None:
        with suppress(OSError):  # it has ended, which the reader notices
            self.pipe.send_bytes(encode(messages))

    def give(self, tasks: Sequence[RemoteTask]) -> None:
        """Send tasks, with what they share if it does not have that yet."""
        messages: list[ToTasks] = []
        for remote in tasks:
            run = remote.run.run
            if run not in self.bases:
                messages.append(remote.run)
            if self.bases.get(run) != remote.base.number:
                messages.append(remote.base)
                self.bases[run] = remote.base.number
            messages.append(remote.work)
            self.tasks.append(remote)
        self.send(messages)


class ProcessPool:
    """A ``Site``: at most ``most`` processes, started as they are needed."""

    def __init__(
        self,
        most: int | None = None,
        start: Callable[[connection.Connection], Process] = launch,
    ) -> None:
        self._most = most or usable_cpus()
        self._start = start
        self._lock = RLock()
        self._children: list[_Child] = []
        self._waiting: deque[RemoteTask] = deque()
        self._bell, self._rung = connection.Pipe(duplex=False)
        self._reader: Thread | None = None
        self._closed = False

    def submit(self, tasks: Sequence[RemoteTask]) -> None:
        """Run these tasks."""
        with self._lock:
            self._waiting.extend(tasks)
            self._spread()

    def withdraw(self, tasks: Sequence[RemoteTask]) -> None:
        """Stop these tasks."""
        with self._lock:
            for remote in tasks:
                with suppress(ValueError):
                    self._waiting.remove(remote)
                for child in self._children:
                    if remote in child.tasks:
                        child.send([Cancel(remote.work.ticket)])
                        if remote is child.tasks[0]:
                            child.kill_at = monotonic() + GRACE
                            self._ring()

    def reply(self, task: RemoteTask, reply: AskReply) -> None:
        """Answer what a task asked."""
        with self._lock:
            for child in self._children:
                if task in child.tasks:
                    child.send([reply])

    def forget(self, runs: Iterable[int]) -> None:
        """The processes need nothing of these runs any more."""
        with self._lock:
            for child in self._children:
                known = [run for run in runs if child.bases.pop(run, None) is not None]
                if known:
                    child.send([Forget(run) for run in known])

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._closed = True
            children, self._children = self._children, []
            self._ring()
        if self._reader is not None:
            self._reader.join(_PATIENCE)  # it closes pipes as well
        for child in children:
            child.pipe.close()
        end = monotonic() + _PATIENCE
        for child in children:
            child.process.join(max(0.0, end - monotonic()))
            if child.process.exitcode is None:
                child.process.kill()
                child.process.join()

    # ---- under the lock

    def _spread(self) -> None:
        """Give waiting tasks to processes."""
        busy = sum(1 for child in self._children if child.tasks)
        wanted = min(self._most, busy + len(self._waiting))
        while len(self._children) < wanted and not self._closed:
            self._add_child()
        while self._waiting:
            child = max(self._children, key=lambda child: child.room, default=None)
            if child is None or child.room <= 0:
                break
            share = -(-len(self._waiting) // len(self._children))
            number = min(child.room, share)
            child.give([self._waiting.popleft() for _ in range(number)])

    def _add_child(self) -> None:
        ours, theirs = connection.Pipe()
        self._children.append(_Child(self._start(theirs), ours))
        if self._reader is None:
            self._reader = Thread(target=self._read, name="milecastle-processes", daemon=True)
            self._reader.start()
        self._ring()

    def _ring(self) -> None:
        """Let the reader look again."""
        with suppress(OSError):
            self._rung.send_bytes(b"")

    # ---- the reader

    def _read(self) -> None:
        while not self._closed:
            with self._lock:
                pipes: dict[Any, _Child] = {child.pipe: child for child in self._children}
                ends = [child.kill_at for child in self._children if child.kill_at is not None]
            patience = max(0.0, min(ends) - monotonic()) if ends else None
            try:
                ready = connection.wait([self._bell, *pipes], patience)
            except OSError:
                continue  # a pipe was closed meanwhile
            self._hear(ready, pipes)
            self._kill_overdue()

    def _hear(self, ready: Sequence[Any], pipes: dict[Any, _Child]) -> None:
        wake: list[RemoteTasks] = []
        for pipe in ready:
            if pipe is self._bell:
                pipe.recv_bytes()
                continue
            child = pipes[pipe]
            try:
                messages = decode_from_tasks(pipe.recv_bytes())
            except (EOFError, OSError):
                wake += self._bury(child)
                continue
            with self._lock:
                wake += self._receive(child, messages)
        with self._lock:
            self._spread()
        for call in {id(call): call for call in wake}.values():
            call.wake()

    def _receive(self, child: _Child, messages: list[FromTasks]) -> list[RemoteTasks]:
        """Take what a process sent; the calls that have to look."""
        wake: list[RemoteTasks] = []
        for message in messages:
            if isinstance(message, Ready):
                child.ready = True
            elif isinstance(message, Done):
                remote = child.tasks.popleft()
                next_over = bool(child.tasks) and child.tasks[0].over
                child.kill_at = monotonic() + GRACE if next_over else None
                child.mean = 0.8 * child.mean + 0.2 * message.seconds
                if not remote.over:
                    remote.call.finished(remote, message)
                    wake.append(remote.call)
            elif isinstance(message, Began):
                child.tasks[0].began = monotonic()
                wake.append(child.tasks[0].call)
            elif child.tasks and child.tasks[0].work.ticket == message.ticket:
                child.tasks[0].call.asked(child.tasks[0], self, message)
            else:
                child.send([AskReply(message.number, None, pack_raised(_left_behind()))])
        return wake

    def _bury(self, child: _Child) -> list[RemoteTasks]:
        """A process has ended: its first task is lost, the others wait for another process."""
        child.pipe.close()
        child.process.join(_PATIENCE)
        how = _described(child.process.exitcode)
        with self._lock:
            if child not in self._children:
                return []
            self._children.remove(child)
            tasks = [remote for remote in child.tasks if not remote.over]
            if child.ready:
                lost = [remote for remote in tasks if remote is child.tasks[0]]
                self._waiting.extendleft(reversed(tasks[len(lost) :]))
            else:
                lost = [*tasks, *self._waiting]
                self._waiting.clear()
                how += (
                    " before it could take a task; its output says why. A script starts its runs "
                    'under `if __name__ == "__main__":`'
                )
        for remote in lost:
            remote.call.lost(remote, how, again=child.ready)
        return [remote.call for remote in lost]

    def _kill_overdue(self) -> None:
        now = monotonic()
        with self._lock:
            for child in self._children:
                if child.kill_at is not None and child.kill_at <= now:
                    child.kill_at = None
                    child.process.kill()


def _left_behind() -> InvalidRequest:
    return InvalidRequest(
        "the node is over, but a thread that it started still runs: nothing more is recorded for it"
    )


def _described(code: int | None) -> str:
    if code is None:
        return "was cut off"
    return f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"


def usable_cpus() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_pool: ProcessPool | None = None
_making = Lock()


def shared_pool() -> ProcessPool:
    """The pool of this process."""
    global _pool  # noqa: PLW0603 - one for all calls, as long as the process lives
    with _making:
        if _pool is None:
            _pool = ProcessPool()
            atexit.register(_pool.close)
        return _pool


def _start_over() -> None:
    """In a forked child: the processes belong to the parent."""
    global _pool, _making
    if _pool is not None:
        atexit.unregister(_pool.close)
    _pool, _making = None, Lock()


call_in_child(_start_over)
