"""Deadlines: which of the running tasks is the next to be out of time."""

from __future__ import annotations

from time import monotonic

from milecastle.engine.effects import RunTask
from milecastle.model.policies import Timeout

__all__ = ["Deadlines"]


class Deadlines:
    """The tasks that have a timeout, from when they were started. Times are monotonic."""

    def __init__(self) -> None:
        self._tasks: dict[int, tuple[RunTask, Timeout, float]] = {}

    def add(self, task: RunTask, since: float | None = None) -> None:
        """A task was started, now or at a time."""
        timeout = task.node.policy.timeout
        if timeout is not None:
            self._tasks[id(task)] = (task, timeout, monotonic() if since is None else since)

    def drop(self, task: RunTask) -> None:
        """A task has ended."""
        if self._tasks:
            self._tasks.pop(id(task), None)

    def next(self) -> float | None:
        """When the first of them is out of time."""
        if not self._tasks:
            return None
        return min(_end(*watched)[0] for watched in self._tasks.values())

    def pass_(self, now: float) -> tuple[RunTask, float] | None:
        """A task that is out of time, if there is one, and how long it was given."""
        for watched in self._tasks.values():
            end, seconds = _end(*watched)
            if end <= now:
                self.drop(watched[0])
                return watched[0], seconds
        return None


def _end(task: RunTask, timeout: Timeout, started: float) -> tuple[float, float]:
    """When a task is out of time, and the time that it was given."""
    ends: list[tuple[float, float]] = []
    if timeout.run is not None:
        ends.append((started + timeout.run, timeout.run))
    if timeout.idle is not None:
        beat = task.context.beat if task.context is not None else 0.0
        ends.append((max(started, beat) + timeout.idle, timeout.idle))
    return min(ends)
