"""Workers: threads running a step's tasks, for a driver waiting for them.

They take tasks from one queue and put the outcomes into another, together with emitted values; both
queues are the C ones, because a fan-out has many small tasks. A thread stuck in a timed out task is
abandoned, and another replaces it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

import msgspec

from milecastle.drivers.node_caller import Deadlines, perform
from milecastle.engine.context import RunningTask
from milecastle.errors import NodeTimeout
from milecastle.model.event import Event
from milecastle.model.task import Finished

AHEAD: Final = 64
"""The maximum number of events emitted ahead of the reader."""

_BRANCHES: Final = 8
"""Up to this many tasks get a thread each immediately. A wider fan-out starts with one thread: very
short tasks run fastest with one."""

_SOON: Final = 0.002
"""If tasks still wait after this many seconds, the number of threads is doubled."""


class _Began(msgspec.Struct, frozen=True):
    """A thread took a task with a timeout: its waiting time does not count."""

    running: RunningTask
    time: float


class _Woken(msgspec.Struct, frozen=True): ...


_WOKEN: Final = _Woken()


class Workers:
    """One run's threads, started as needed, at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._todo: SimpleQueue[tuple[RunningTask, Context] | None] = SimpleQueue()
        self._done: SimpleQueue[Finished | Event | _Began | _Woken] = SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._threads = 0
        self._behind = 0.0
        self._running: dict[int, RunningTask] = {}
        self._deadlines = Deadlines()
        self._closed = False

    def start(self, tasks: Sequence[RunningTask]) -> None:
        if self._todo.empty():
            self._behind = monotonic()
        for task in tasks:
            self._running[id(task.task)] = task
            self._todo.put((task, copy_context()))
        self._grow(self._wanted if self._wanted <= _BRANCHES else 1)

    @property
    def _wanted(self) -> int:
        return min(self._most, len(self._running))

    def _catch_up(self, now: float) -> float:
        if now >= self._behind + _SOON:
            self._grow(min(2 * self._threads, self._wanted))
            self._behind = now
        return self._behind + _SOON

    def _grow(self, threads: int) -> None:
        while self._threads < threads:
            self._threads += 1
            threading.Thread(target=self._work, name="milecastle-worker", daemon=True).start()

    def emit(self, event: Event) -> None:
        """Pass a node's event to the driver, and wait if it is far behind."""
        self._room.acquire()
        if self._closed:
            self._room.release()  # for the next waiter
            return
        self._done.put(event)

    def wake(self) -> None:
        self._done.put(_WOKEN)

    def wait(self, until: float | None) -> list[Finished | Event]:
        """Finished tasks and events; empty if the monotonic time came first."""
        item = self._get(until)
        if item is None:
            return []
        found: list[Finished | Event] = []
        while True:
            if isinstance(item, _Began):
                self._deadlines.add(item.running, item.time)
            elif isinstance(item, Event):
                self._room.release()
                found.append(item)
            elif isinstance(item, Finished) and self._settle(item):
                found.append(item)
            try:
                item = self._done.get_nowait()
            except Empty:
                return found

    def _get(self, until: float | None) -> Finished | Event | _Began | _Woken | None:
        while True:
            due = self._deadlines.next()
            ends = [moment for moment in (until, due) if moment is not None]
            if self._threads < self._wanted and not self._todo.empty():
                ends.append(self._catch_up(monotonic()))
            try:
                if not ends:
                    return self._done.get()
                return self._done.get(timeout=max(0.0, min(ends) - monotonic()))
            except Empty:
                late = self._deadlines.pass_(monotonic())
                if late is not None:
                    running, seconds = late
                    self._threads -= 1  # that one is stuck in a task nobody waits for any more
                    error = NodeTimeout(node=running.node.name, seconds=seconds)
                    return Finished(running.task, None, error)
                if until is not None and monotonic() >= until:
                    return None

    def _settle(self, finished: Finished) -> bool:
        running = self._running.pop(id(finished.task), None)
        if running is None:
            self._threads += 1  # it was stuck, and is back
            return False
        self._deadlines.drop(running)
        running.end()
        return True

    def _work(self) -> None:
        get, put = self._todo.get, self._done.put
        while (work := get()) is not None and not self._closed:
            running, context = work
            if running.node.policy.timeout is not None:
                put(_Began(running, monotonic()))
            try:
                ended = Finished(running.task, context.run(perform, running), None)
            except BaseException as error:
                ended = Finished(running.task, None, error)
            put(ended)
        self._todo.put(None)

    def close(self) -> None:
        """End idle threads; working ones end with their task.

        How many there are is not known, since some may be stuck: each one ending notifies the
        next.
        """
        self._closed = True
        self._todo.put(None)
        self._room.release()
