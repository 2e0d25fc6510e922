"""Effects: requests from the engine to a driver.

The answer is sent back into the generator; an effect's exception is thrown into it.

===============  ==============================================  ===========================
effect           asks to                                         is answered with
===============  ==============================================  ===========================
``RunTask``      run one task and wait for it                    what the node returned
``StartTasks``   start several tasks, and not wait               nothing
``AwaitTasks``   wait until some have ended, or a time has come  finished tasks, perhaps none
``CancelTasks``  stop started tasks, if that can be              nothing
``Begin``        look up the thread of a subgraph                its run's plan
``Recall``       read again what the store has of the step       what was read
``Evaluate``     await an async predicate or router              what it returned
``Commit``       write a batch, durably                          nothing
``Leave``        save a portable file of where the run stops     nothing
``Emit``         emit to observers and the reader of a stream         nothing
===============  ==============================================  ===========================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from milecastle.engine.plan import Ending, RunPlan
from milecastle.errors import RunError
from milecastle.graph.structure import Subgraph
from milecastle.model.event import Event
from milecastle.model.task import RunTask
from milecastle.ports.store import Batch


class Stopped(BaseException):
    """Thrown into the engine by a driver asked to stop, with the reason."""

    def __init__(self, reason: RunError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class StartTasks(msgspec.Struct, frozen=True):
    tasks: tuple[RunTask, ...]


class AwaitTasks(msgspec.Struct, frozen=True):
    """Wait until some started tasks have ended.

    ``until``, in monotonic time, ends the wait; then perhaps no task has finished.
    """

    until: int | None = None


class CancelTasks(msgspec.Struct, frozen=True):
    """Stop these tasks. Those that cannot be stopped run to their end."""

    tasks: tuple[RunTask, ...]


class Begin(msgspec.Struct, frozen=True):
    """Look up a subgraph's thread: it is new, unfinished, waiting, or has ended.

    It is named after ``parent``'s thread, the step's ``place`` and the node's ``task``.
    The place is unique to this step: the id of the entry that started it, and the step's number.
    """

    subgraph: Subgraph
    parent: RunPlan
    place: str
    task: str
    node: str
    input: Any
    answers: Mapping[str, Any]
    timed_out: Mapping[str, int]


class Recall(msgspec.Struct, frozen=True):
    """Read this step's rows or messages in the store again.

    Until our first entry is in the log, the thread's previous owner could still add rows.
    """

    read: Callable[[], Any]


class Evaluate(msgspec.Struct, frozen=True):
    function: Callable[[Any], Awaitable[Any]]
    state: Any


class Commit(msgspec.Struct, frozen=True):
    batch: Batch


class Leave(msgspec.Struct, frozen=True):
    """Save a portable file where the run stops, before that is reported.

    ``results`` are the last step's updates, by task, if it had several tasks.
    """

    save: Callable[[Ending, Mapping[str, Mapping[str, Any]]], None]
    ending: Ending
    results: Mapping[str, Mapping[str, Any]]


class Emit(msgspec.Struct, frozen=True):
    event: Event


Effect = (
    RunTask
    | StartTasks
    | AwaitTasks
    | CancelTasks
    | Begin
    | Recall
    | Evaluate
    | Commit
    | Leave
    | Emit
)
