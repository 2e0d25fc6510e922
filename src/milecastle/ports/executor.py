"""An executor runs tasks: on this thread, on others, on an event loop, in other processes.

It receives tasks as data, finds their functions in its own compiled graphs, and gives
their code a ``TaskPort`` to the run. A returned task is the object passed in.
This process's executors are in ``drivers/local.py``; ``compute/`` sends tasks elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from milecastle.model.event import Event
from milecastle.model.task import Finished, RunTask
from milecastle.ports.task import TaskPort

EmitEvent = Callable[[Event], object]


class Executor(Protocol):
    """One call's tasks, for a blocking driver."""

    def call(self, task: RunTask, /) -> Any:
        """Run one task and wait; return its result, or raise its error."""
        ...

    def start(self, tasks: Sequence[RunTask], /) -> None:
        """Start tasks without waiting."""
        ...

    def wait(self, until: float | None, /) -> list[Finished | Event]:
        """Wait until tasks have ended or events were emitted, or until a monotonic time.

        A timed-out task ends with ``NodeTimeout``, whatever its code still does.
        """
        ...

    @property
    def can_stop(self) -> bool:
        """True if every running task can be stopped."""
        ...

    def wake(self) -> None:
        """Let ``wait`` return; from any thread."""
        ...

    def cancel(self, tasks: Sequence[RunTask], /) -> None:
        """Stop tasks. Those that cannot be stopped run to their end."""
        ...

    def emit(self, event: Event, /) -> None:
        """Pass an event to the waiting driver, from a task's thread."""
        ...

    def close(self) -> None:
        """End the call: running tasks are no longer awaited."""
        ...


class LoopExecutor(Protocol):
    """One call's tasks, for a driver on an event loop."""

    @property
    def emitted(self) -> Collection[Event]:
        """Pending events: always the same object."""
        ...

    def call(self, task: RunTask, /) -> Awaitable[Any]:
        """Run one task; return its result, or raise its error."""
        ...

    def start(self, tasks: Sequence[RunTask], /) -> None: ...

    async def wait(self, seconds: float | None, /) -> list[Finished | Event]:
        """Wait until tasks ended or events were emitted, or for this many seconds."""
        ...

    def wake(self) -> None:
        """Let ``wait`` return; from any thread."""
        ...

    def take_events(self) -> list[Event]:
        """Events emitted since the last call, without waiting."""
        ...

    def cancel(self, tasks: Sequence[RunTask], /) -> None:
        """Stop tasks. Those that cannot be stopped run to their end."""
        ...

    def emit(self, event: Event, /) -> None:
        """Pass an event to the driver; in a thread, wait until the reader has caught up."""
        ...

    async def aemit(self, event: Event, /) -> None: ...

    async def close(self) -> None: ...


class Executors(Protocol):
    """Makes a call's executor. ``ports`` are the call's runs, by their ids.

    At most ``most`` tasks run at once. ``tell`` receives events at once, if nobody reads a stream
    and no task has to wait for the reader.
    """

    def on_thread(self, ports: Mapping[str, TaskPort], most: int, /) -> Executor: ...

    def on_loop(
        self, ports: Mapping[str, TaskPort], most: int, tell: EmitEvent | None, /
    ) -> LoopExecutor: ...
