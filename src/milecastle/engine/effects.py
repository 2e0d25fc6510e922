"""Effects: what the engine asks a driver to do.

The answer is sent back into the generator; what an effect raised is thrown into it.

===============  ==============================================  ===========================
effect           asks to                                         is answered with
===============  ==============================================  ===========================
``RunTask``      run one task and wait for it                    what the node returned
``StartTasks``   start several tasks, and not wait               nothing
``AwaitTasks``   wait until some have ended, or a time has come  finished tasks, perhaps none
``CancelTasks``  stop tasks that were started, if that can be    nothing
``Begin``        look up the thread of a subgraph                the plan of its run
``Recall``       read again what tasks of the step have left     that, by name
``Evaluate``     await an async predicate or router              what it returned
``Commit``       write a batch, durably                          nothing
``Emit``         tell observers and who reads the stream         nothing
===============  ==============================================  ===========================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from milecastle.errors import RunError
from milecastle.graph.nodes import Node
from milecastle.graph.subgraphs import Subgraph
from milecastle.model.event import Event
from milecastle.ports.store import Batch

if TYPE_CHECKING:
    from milecastle.engine.context import Context
    from milecastle.engine.desk import Desk
    from milecastle.engine.plan import RunPlan

__all__ = [
    "AwaitTasks",
    "Begin",
    "CancelTasks",
    "Commit",
    "Effect",
    "Emit",
    "Evaluate",
    "Finished",
    "Recall",
    "RunTask",
    "StartTasks",
    "Stopped",
]


class Stopped(BaseException):
    """Thrown into the engine by a driver that was asked to stop. ``reason`` says how."""

    def __init__(self, reason: RunError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class RunTask(msgspec.Struct, eq=False):
    """Run one task: a node with the state that it is given.

    ``desk`` is where a task that asks, sleeps or records turns to; its ``context`` is made there
    when it is first needed. ``id`` names the task within its step.
    """

    node: Node
    state: Any
    desk: Desk
    id: str
    config: Any = None
    context: Context | None = None
    attempt: int = 1

    def abandon(self) -> None:
        """Nobody waits for it any more: what its code still does is not recorded."""
        if self.context is not None:
            self.context.over = True


class Finished(msgspec.Struct, frozen=True):
    """A task that ended: what it returned, or what it raised."""

    task: RunTask
    update: Any = None
    error: BaseException | None = None


class StartTasks(msgspec.Struct, frozen=True):
    """Start these tasks side by side."""

    tasks: tuple[RunTask, ...]


class AwaitTasks(msgspec.Struct, frozen=True):
    """Wait until some of the tasks that were started have ended.

    ``until`` (microseconds since 1970) ends the wait all the same; then nothing need be finished.
    """

    until: int | None = None


class CancelTasks(msgspec.Struct, frozen=True):
    """Stop these tasks. Those that cannot be stopped end as they would have."""

    tasks: tuple[RunTask, ...]


class Begin(msgspec.Struct, frozen=True):
    """Look up the thread of a subgraph: it is new, was cut short, waits, or has ended.

    It stands under the thread of ``parent``, the ``place`` of the step and the ``task``.
    """

    subgraph: Subgraph
    parent: RunPlan
    place: str
    task: str
    input: Any
    answers: Mapping[str, Any]


class Recall(msgspec.Struct, frozen=True):
    """Read again what tasks of this step have left.

    Until an entry of ours stood in the log, whoever had the thread before could add to it.
    """

    read: Callable[[], Mapping[str, Mapping[str, Any]]]


class Evaluate(msgspec.Struct, frozen=True):
    """Await an async predicate or router."""

    function: Callable[[Any], Awaitable[Any]]
    state: Any


class Commit(msgspec.Struct, frozen=True):
    """Write this batch before anything else happens."""

    batch: Batch


class Emit(msgspec.Struct, frozen=True):
    """Tell this event."""

    event: Event


Effect = RunTask | StartTasks | AwaitTasks | CancelTasks | Begin | Recall | Evaluate | Commit | Emit
