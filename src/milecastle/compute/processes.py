"""A local process pool, shared by all calls in this process.

Rules:

- Each process is a fresh interpreter: nothing is forked. It imports the app's module.
- Each has a thread that reads its messages, and gives it the next tasks at once, so it does not
  wait for the driver: short tasks are queued ahead at a process, long ones are not.
- An idle process gets tasks queued at another and not started there.
- Each has a thread writing to it. Nothing is read or written under the lock, so a
  process that does not read, or stops within a message, delays no other.
- If a process ends, the task it ran is lost and counts as an attempt. Those it had not
  started are given to others. That it ended is also noticed if a process it forked lives on.
- A process whose task is over and does not stop within ``GRACE`` seconds is killed.
- A process ending before it could take a task fails the waiting tasks: the next would end as
  well. If others work, another one is started later: there may be no room for it now.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing import connection
from queue import SimpleQueue
from threading import Lock, RLock, Thread, Timer
from time import monotonic, sleep
from typing import Final, Protocol

from milecastle.compute.messages import (
    AskReply,
    Began,
    Cancel,
    Done,
    EndProcess,
    Forget,
    FromTasks,
    Ready,
    ReturnTasks,
    TasksReturned,
    ToTasks,
    decode_from_tasks,
    encode,
    pack_raised,
)
from milecastle.compute.task_client import RemoteTask, RemoteTasks
from milecastle.compute.task_server import GRACE, Pipe, serve
from milecastle.errors import InvalidRequest
from milecastle.support.forking import call_in_child

_AHEAD: Final = 0.02
"""Tasks that take this many seconds together are queued at a process beyond the one it runs."""

_MOST_AHEAD: Final = 32

_GLANCE: Final = 0.25
"""How often, in seconds, to look whether a process has ended."""

_LONGEST_PAUSE: Final = 60.0
"""For how many seconds, at most, no process is started after one that ended while it started."""

_PATIENCE: Final = 5.0
"""How many seconds the processes have to end with this one."""


class Process(Protocol):
    @property
    def exitcode(self) -> int | None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def kill(self) -> None: ...


class NearPipe(Pipe, Protocol):
    def close(self) -> None: ...


def launch(pipe: connection.Connection) -> Process:
    from multiprocessing import get_context

    process = get_context("spawn").Process(target=serve, args=(pipe,), name="milecastle-node")
    process.start()
    pipe.close()
    return process


class _Child:
    def __init__(self, process: Process, pipe: NearPipe) -> None:
        self.process = process
        self.pipe = pipe
        self.tasks: deque[RemoteTask] = deque()
        self.bases: dict[int, int] = {}
        self.recalled: set[int] = set()
        self.ready = False
        self.mean: float | None = None
        self._outbox: SimpleQueue[list[ToTasks] | None] = SimpleQueue()
        self._writer = Thread(target=self._write, name="milecastle-writer", daemon=True)
        self._writer.start()

    @property
    def room(self) -> int:
        if not self.ready:
            return 0
        ahead = 0 if self.mean is None else int(_AHEAD / max(self.mean, 1e-6))
        return 1 + min(_MOST_AHEAD, ahead) - len(self.tasks)

    def send(self, messages: list[ToTasks]) -> None:
        self._outbox.put(messages)

    def _write(self) -> None:
        while (messages := self._outbox.get()) is not None:
            with suppress(EOFError, OSError):  # it has ended, which its reader notices
                self.pipe.send_bytes(encode(messages))

    def close(self) -> None:
        self._outbox.put(None)
        self._writer.join()
        self.pipe.close()

    def recall(self) -> None:
        asked = [
            remote.work.ticket
            for remote in islice(self.tasks, 1 + (len(self.tasks) - 1) // 2, None)
            if remote.work.ticket not in self.recalled
        ]
        if asked:
            self.recalled.update(asked)
            self.send([ReturnTasks(tuple(asked))])

    def give(self, tasks: Sequence[RemoteTask]) -> None:
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
    hint = '; its output says why. A script starts its runs under `if __name__ == "__main__":`'

    def __init__(
        self, most: int | None = None, start: Callable[[connection.Connection], Process] = launch
    ) -> None:
        self._most = most or usable_cpus()
        self._start = start
        self._lock = RLock()
        self._children: list[_Child] = []
        self._waiting: deque[RemoteTask] = deque()
        self._readers: list[Thread] = []
        self._closed = False
        self._stillborn = 0  # in a row
        self._more_at = 0.0

    def submit(self, tasks: Sequence[RemoteTask]) -> None:
        with self._lock:
            self._waiting.extend(tasks)
            self._spread()

    def withdraw(self, tasks: Sequence[RemoteTask]) -> None:
        with self._lock:
            for remote in tasks:
                with suppress(ValueError):
                    self._waiting.remove(remote)
                for child in self._children:
                    if remote in child.tasks:
                        child.send([Cancel(remote.work.ticket)])
                        if remote is child.tasks[0]:
                            self._kill_later(child, remote)

    def reply(self, task: RemoteTask, reply: AskReply) -> None:
        with self._lock:
            for child in self._children:
                if task in child.tasks:
                    child.send([reply])

    def forget(self, runs: Iterable[int]) -> None:
        with self._lock:
            for child in self._children:
                known = [run for run in runs if child.bases.pop(run, None) is not None]
                if known:
                    child.send([Forget(run) for run in known])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            children, self._children = self._children, []
        for child in children:
            child.send([EndProcess()])
        end = monotonic() + _PATIENCE
        for child in children:
            child.process.join(max(0.0, end - monotonic()))
            if child.process.exitcode is None:
                child.process.kill()
                child.process.join()
        for reader in self._readers:
            reader.join(max(0.0, end - monotonic()))

    # ---- under the lock

    def _spread(self) -> None:
        tasks = len(self._waiting) + sum(len(child.tasks) for child in self._children)
        most = self._most if monotonic() >= self._more_at else len(self._children)
        wanted = min(most, tasks)
        while len(self._children) < wanted and not self._closed:
            self._add_child()
        while self._waiting:
            free = [child for child in self._children if child.room > 0]
            if not free:
                break
            child = min(free, key=lambda child: len(child.tasks))
            share = -(-len(self._waiting) // len(self._children))
            number = min(child.room, share)
            child.give([self._waiting.popleft() for _ in range(number)])
        if any(child.ready and not child.tasks for child in self._children):
            longest = max(self._children, key=lambda child: len(child.tasks))
            if len(longest.tasks) > 1:
                longest.recall()

    def _add_child(self) -> None:
        child = _Child(*self._connect())
        self._children.append(child)
        reader = Thread(target=self._read, args=(child,), name="milecastle-reader", daemon=True)
        self._readers = [*filter(Thread.is_alive, self._readers), reader]
        reader.start()

    def _connect(self) -> tuple[Process, NearPipe]:
        ours, theirs = connection.Pipe()
        near = socket.socket(fileno=os.dup(ours.fileno()))
        process = self._start(theirs)
        Thread(target=_cut_off, args=(process, near), name="milecastle-watch", daemon=True).start()
        return process, ours

    def _kill_later(self, child: _Child, remote: RemoteTask) -> None:
        self._after(GRACE, self._kill_overdue, child, remote)

    def _after(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        timer = Timer(seconds, call, arguments)
        timer.daemon = True
        timer.start()

    def _start_again(self) -> None:
        """The pause after a process that could not start is over."""
        with self._lock:
            self._spread()

    # ---- the threads of processes

    def _read(self, child: _Child) -> None:
        with suppress(EOFError, OSError):
            while True:
                messages = decode_from_tasks(child.pipe.recv_bytes())
                with self._lock:
                    wake = self._receive(child, messages)
                    self._spread()
                for call in wake:
                    call.wake()
        child.close()
        for call in self._bury(child):
            call.wake()

    def _kill_overdue(self, child: _Child, remote: RemoteTask) -> None:
        with self._lock:
            if child in self._children and child.tasks and child.tasks[0] is remote:
                child.process.kill()

    def _receive(self, child: _Child, messages: list[FromTasks]) -> list[RemoteTasks]:
        wake: list[RemoteTasks] = []
        for message in messages:
            if isinstance(message, Ready):
                child.ready = True
                self._stillborn = 0
            elif isinstance(message, Done):
                remote = child.tasks.popleft()
                child.recalled.discard(message.ticket)
                if child.tasks and child.tasks[0].over:
                    self._kill_later(child, child.tasks[0])
                mean = message.seconds if child.mean is None else child.mean
                child.mean = 0.8 * mean + 0.2 * message.seconds
                if not remote.over:
                    remote.call.finished(remote, message)
                    wake.append(remote.call)
            elif isinstance(message, TasksReturned):
                self._take_back(child, message.tickets)
            elif isinstance(message, Began):
                child.tasks[0].began = monotonic()
                wake.append(child.tasks[0].call)
            elif child.tasks and child.tasks[0].work.ticket == message.ticket:
                child.tasks[0].call.asked(child.tasks[0], self, message)
            else:
                left = InvalidRequest(
                    "the node is over, but a thread that it started still runs: nothing more is "
                    "recorded for it"
                )
                child.send([AskReply(message.number, None, pack_raised(left))])
        return wake

    def _take_back(self, child: _Child, tickets: Sequence[int]) -> None:
        back = [remote for remote in child.tasks if remote.work.ticket in tickets]
        child.recalled.difference_update(tickets)
        for remote in back:
            child.tasks.remove(remote)
            remote.renew()  # what is left of it there must not be taken for it
        self._waiting.extendleft(remote for remote in reversed(back) if not remote.over)

    def _how(self, process: Process) -> str:
        return _described(process.exitcode)

    def _gives_up(self, process: Process) -> bool:
        return True

    def _bury(self, child: _Child) -> list[RemoteTasks]:
        """Handle an ended process: its first task is lost, the others go elsewhere."""
        child.process.join(_PATIENCE)
        how = self._how(child.process)
        with self._lock:
            if child not in self._children:
                return []
            self._children.remove(child)
            self._stillborn += not child.ready
            tasks = [remote for remote in child.tasks if not remote.over]
            if child.ready:
                lost = [remote for remote in tasks if remote is child.tasks[0]]
                self._waiting.extendleft(reversed(tasks[len(lost) :]))
            elif any(other.ready for other in self._children):
                pause = min(_LONGEST_PAUSE, 0.1 * 2**self._stillborn)
                self._more_at = monotonic() + pause
                self._after(pause, self._start_again)
                lost = []
            elif not self._gives_up(child.process):
                lost = []
            else:
                lost = [*self._waiting]
                self._waiting.clear()
                how += f" before it could take a task{self.hint}"
            self._spread()
        for remote in lost:
            remote.call.lost(remote, how, again=child.ready)
        return [remote.call for remote in lost]


def _cut_off(process: Process, near: socket.socket) -> None:
    """Close the pipe when the process has ended, even if a forked child holds it open."""
    with near:
        while process.exitcode is None:
            sleep(_GLANCE)
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)  # what was sent before can still be read


def usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_pool: ProcessPool | None = None
_making = Lock()


def shared_pool() -> ProcessPool:
    global _pool  # noqa: PLW0603 - one for all calls, as long as the process lives
    with _making:
        if _pool is None:
            _pool = ProcessPool()
            atexit.register(_pool.close)
        return _pool


def _start_over() -> None:
    global _pool, _making
    if _pool is not None:
        atexit.unregister(_pool.close)
    _pool, _making = None, Lock()


call_in_child(_start_over)


def _described(code: int | None) -> str:
    if code is None:
        return "was cut off"
    return f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
