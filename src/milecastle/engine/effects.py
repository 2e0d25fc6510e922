"""Effects: what the engine asks a driver to do.

The answer is sent back into the generator; what an effect raised is thrown into it.

=============  ================================================  =========================
effect         asks to                                           is answered with
=============  ================================================  =========================
``RunTask``    run one task                                      what the node returned
``RunTasks``   start several tasks and wait for the first        finished tasks, at least one
``AwaitTasks`` wait for more of them                             finished tasks, at least one
``Evaluate``   await an async predicate or router                what it returned
``Commit``     write a batch, durably                            nothing
``Emit``       tell observers and who reads the stream           nothing
=============  ================================================  =========================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from milecastle.errors import RunError
from milecastle.graph.nodes import Node
from milecastle.model.event import Event
from milecastle.ports.store import Batch

__all__ = [
    "AwaitTasks",
    "Commit",
    "Effect",
    "Emit",
    "Evaluate",
    "Finished",
    "RunTask",
    "RunTasks",
    "Stopped",
]


class Stopped(BaseException):
    """Thrown into the engine by a driver that was asked to stop. ``reason`` says how."""

    def __init__(self, reason: RunError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class RunTask(msgspec.Struct, frozen=True):
    """Run one task: a node with the state that it is given."""

    node: Node
    state: Any
    config: Any = None
    context: Any = None


class Finished(msgspec.Struct, frozen=True):
    """A task that ended: what it returned, or what it raised."""

    task: RunTask
    update: Any = None
    error: BaseException | None = None


class RunTasks(msgspec.Struct, frozen=True):
    """Start these tasks side by side."""

    tasks: tuple[RunTask, ...]


class AwaitTasks(msgspec.Struct, frozen=True):
    """Wait for more of the tasks that were started."""


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


Effect = RunTask | RunTasks | AwaitTasks | Evaluate | Commit | Emit
