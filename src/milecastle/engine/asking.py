"""Asking a person from inside a node, and the signals that end an attempt without a failure.

A node that asks is run again from its top once there is an answer: what must not happen twice is
recorded before with ``ctx.once``.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, overload

from milecastle.errors import InvalidRequest

if TYPE_CHECKING:
    from milecastle.engine.effects import RunTask
    from milecastle.model.interrupt import Interrupt

__all__ = ["Asked", "Parked", "Paused", "current_task", "interrupt"]

T = TypeVar("T")

current_task: ContextVar[RunTask | None] = ContextVar("milecastle_task", default=None)
"""The task that this code is part of. Drivers set it before they call a node."""


class Paused(BaseException):
    """Ends an attempt of a task that cannot go on now. Not an error: do not catch it."""


class Asked(Paused):
    """The task waits for a person."""

    def __init__(self, interrupt: Interrupt) -> None:
        super().__init__(interrupt.id)
        self.interrupt = interrupt


class Parked(Paused):
    """The task waits until a time, in microseconds since 1970. ``label`` tells which wait it is."""

    def __init__(self, label: str, until: int) -> None:
        super().__init__(label, until)
        self.label = label
        self.until = until


@overload
def interrupt(question: Any, *, show: Any = ..., answer: type[T]) -> T: ...
@overload
def interrupt(question: Any, *, show: Any = ..., answer: Any = ...) -> Any: ...
def interrupt(question: Any, *, show: Any = None, answer: Any = None) -> Any:
    """Ask a person. The run waits, for as long as it takes, and goes on with the answer.

    ``show`` is plain data that the person should see. ``answer`` is the type of the answer: what
    does not fit is refused when it is given, and the thread stays as it was.

    The node ends here and is run again from its top when there is an answer; then this call
    returns it. Several questions in one node are told apart by their order. Record before you
    ask (``ctx.once``), and act after.
    """
    task = current_task.get(None)
    if task is None:
        raise InvalidRequest("interrupt() asks from inside a node that runs in a graph")
    return task.desk.context(task).ask(question, show, answer)
