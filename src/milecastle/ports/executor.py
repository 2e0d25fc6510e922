"""An executor runs tasks: on this thread, on others, on an event loop, in other processes.

It receives tasks as data, finds their functions in its own table of compiled graphs, and gives
their code a ``TaskPort`` to the run. A task that is handed back is the object that was handed in.
The executors of this process are in ``drivers/local.py``; ``compute/`` sends tasks elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from milecastle.model.event import Event
from milecastle.model.task import Finished, RunTask
from milecastle.ports.task import TaskPort

EmitEvent = Callable[[Event], object]


class Executor(Protocol):
    """The tasks of one call, for a driver that blocks."""

    def call(self, task: RunTask, /) -> Any:
        """Run one task and wait for it: what its node returned, or raise what it raised."""
        ...

    def start(self, tasks: Sequence[RunTask], /) -> None:
        """Start tasks, and do not wait for them."""
        ...

    def wait(self, until: float | None, /) -> list[Finished | Event]:
        """Wait until tasks have ended or events were emitted, or until a monotonic time.

        A task that is out of time ends with ``NodeTimeout``, whatever its code still does.
        """
        ...

    @property
    def can_stop(self) -> bool:
        """Whether every task that runs now can be stopped."""
        ...

    def wake(self) -> None:
        """Let ``wait`` return; from any thread."""
        ...

    def cancel(self, tasks: Sequence[RunTask], /) -> None:
        """Stop tasks. Those that cannot be stopped end as they would have."""
        ...

    def emit(self, event: Event, /) -> None:
        """Hand an event to the driver that waits; from the thread of a task."""
        ...

    def close(self) -> None:
        """The call is over: nobody waits for tasks that still run."""
        ...


class LoopExecutor(Protocol):
    """The tasks of one call, for a driver on an event loop."""

    @property
    def emitted(self) -> Collection[Event]:
        """The events that nobody has taken yet: always the same object."""
        ...

    def call(self, task: RunTask, /) -> Awaitable[Any]:
        """Run one task: what its node returned, or raise what it raised."""
        ...

    def start(self, tasks: Sequence[RunTask], /) -> None:
        """Start tasks, and do not wait for them."""
        ...

    async def wait(self, seconds: float | None, /) -> list[Finished | Event]:
        """Wait until tasks have ended or events were emitted, or for so many seconds."""
        ...

    def wake(self) -> None:
        """Let ``wait`` return; from any thread."""
        ...

    def take_events(self) -> list[Event]:
        """The events that were emitted since the last time, without waiting."""
        ...

    def cancel(self, tasks: Sequence[RunTask], /) -> None:
        """Stop tasks. Those that cannot be stopped end as they would have."""
        ...

    def emit(self, event: Event, /) -> None:
        """Hand an event to the driver; from a thread, waiting until the reader has caught up."""
        ...

    async def aemit(self, event: Event, /) -> None:
        """``emit`` without stopping the loop."""
        ...

    async def close(self) -> None:
        """The call is over: what still runs is cancelled."""
        ...


class Executors(Protocol):
    """Makes the executor of a call. ``ports`` are the runs of the call, by their ids.

    At most ``most`` tasks run at once. ``tell`` receives events at once, if nobody reads a stream
    and no task has to wait for the reader.
    """

    def on_thread(self, ports: Mapping[str, TaskPort], most: int, /) -> Executor:
        """For a driver that blocks."""
        ...

    def on_loop(
        self, ports: Mapping[str, TaskPort], most: int, tell: EmitEvent | None, /
    ) -> LoopExecutor:
        """For a driver on the running event loop."""
        ...
