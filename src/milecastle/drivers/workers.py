"""Workers: threads that run the tasks of a step, for a driver that waits for them.

They take tasks from one queue and put what came of them into another, together with what nodes
emit; both queues are the C ones, because a fan-out has many small tasks. A thread that is stuck in
a task that timed out is left to itself, and another takes its place.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

import msgspec

from milecastle.drivers.calling import call_task
from milecastle.drivers.timing import Deadlines
from milecastle.engine.effects import Finished, RunTask
from milecastle.errors import NodeTimeout
from milecastle.model.event import Event

__all__ = ["Workers"]

AHEAD: Final = 64
"""The most events that may be emitted ahead of who reads them."""

_BRANCHES: Final = 8
"""So many tasks get a thread each at once. A wider fan-out begins with one thread: tasks that are
over at once go fastest with one."""

_SOON: Final = 0.002
"""If tasks still wait after so many seconds, there are twice as many threads."""


class _Late(msgspec.Struct, frozen=True):
    """A task that is out of time, and still runs."""

    finished: Finished


class _Began(msgspec.Struct, frozen=True):
    """A thread took a task that has a timeout: what it waited before does not count."""

    task: RunTask
    time: float


class Workers:
    """The threads of one run, made as they are needed, at most ``most`` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._todo: SimpleQueue[tuple[RunTask, Context] | None] = SimpleQueue()
        self._done: SimpleQueue[Finished | Event | _Began] = SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._threads = 0
        self._behind = 0.0
        self._running: dict[int, RunTask] = {}
        self._deadlines = Deadlines()
        self._closed = False

    def start(self, tasks: Sequence[RunTask]) -> None:
        """Queue tasks, and see to it that there are threads for them."""
        if self._todo.empty():
            self._behind = monotonic()
        for task in tasks:
            self._running[id(task)] = task
            self._todo.put((task, copy_context()))
        self._grow(self._wanted if self._wanted <= _BRANCHES else 1)

    @property
    def _wanted(self) -> int:
        """How many threads could have something to do."""
        return min(self._most, len(self._running))

    def _catch_up(self, now: float) -> float:
        """Make more threads if tasks have waited for some time; when to look again."""
        if now >= self._behind + _SOON:
            self._grow(min(2 * self._threads, self._wanted))
            self._behind = now
        return self._behind + _SOON

    def _grow(self, threads: int) -> None:
        while self._threads < threads:
            self._threads += 1
            threading.Thread(target=self._work, name="milecastle-worker", daemon=True).start()

    def emit(self, event: Event) -> None:
        """Called by nodes: hand an event to the driver, and wait if it is far behind."""
        self._room.acquire()
        if self._closed:
            self._room.release()  # for the next who waits
            return
        self._done.put(event)

    def wait(self, until: float | None) -> list[Finished | Event]:
        """What happened: tasks that ended, and events. Nothing if the time, monotonic, came."""
        first = self._get(until)
        if first is None:
            return []
        if isinstance(first, _Late):
            return [first.finished]
        found: list[Finished | Event] = []
        item: Finished | Event | _Began = first
        while True:
            if isinstance(item, _Began):
                self._deadlines.add(item.task, item.time)
            elif self._is_news(item):
                found.append(item)
            try:
                item = self._done.get_nowait()
            except Empty:
                return found

    def _get(self, until: float | None) -> Finished | Event | _Began | _Late | None:
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
                    task, seconds = late
                    del self._running[id(task)]
                    self._threads -= 1  # that one is stuck in a task nobody waits for any more
                    error = NodeTimeout(node=task.node.name, seconds=seconds)
                    return _Late(Finished(task, None, error))
                if until is not None and monotonic() >= until:
                    return None

    def _is_news(self, item: Finished | Event) -> bool:
        if isinstance(item, Event):
            self._room.release()
            return True
        if self._running.pop(id(item.task), None) is None:
            self._threads += 1  # it was stuck, and is back
            return False
        self._deadlines.drop(item.task)
        return True

    def _work(self) -> None:
        get, put = self._todo.get, self._done.put
        while (work := get()) is not None and not self._closed:
            task, context = work
            if task.node.policy.timeout is not None:
                put(_Began(task, monotonic()))
            try:
                returned = context.run(call_task, task)
            except BaseException as error:
                finished = Finished(task, None, error)
            else:
                finished = Finished(task, returned)
            put(finished)
        self._todo.put(None)

    def close(self) -> None:
        """End the threads that are idle; those that work end when their task does.

        How many there are is not known, since some may be stuck: each one that ends tells the next.
        """
        self._closed = True
        self._todo.put(None)
        self._room.release()
