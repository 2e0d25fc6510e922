"""A run did not end well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milecastle.errors.root import MilecastleError

__all__ = [
    "AttemptsExhausted",
    "CommandFailed",
    "CycleDetected",
    "ExecutionError",
    "FileRefused",
    "InvalidUpdate",
    "MaxStepsExceeded",
    "NodeTimeout",
    "RoutingError",
    "RunCancelled",
    "RunError",
    "RunTimeout",
]


class RunError(MilecastleError):
    """A run did not end well. ``thread`` and ``run_id`` say which, when there is a store."""

    code = "MC200"

    def __init__(
        self, message: str, *, thread: str | None = None, run_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.thread = thread
        self.run_id = run_id


class ExecutionError(RunError):
    """A node failed. The exception that it raised is ``cause`` (and ``__cause__``).

    ``state`` is the state before the node; it is data for the caller and is never
    part of the message.
    """

    code = "MC201"

    def __init__(
        self,
        message: str,
        *,
        node: str,
        step: int,
        path: Sequence[str],
        state: Any,
        cause: BaseException,
        thread: str | None = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__(message, thread=thread, run_id=run_id)
        self.node = node
        self.step = step
        self.path = tuple(path)
        self.state = state
        self.cause = cause


class MaxStepsExceeded(RunError):
    """The run wanted a step beyond ``max``; ``reached`` is the step it wanted."""

    code = "MC202"

    def __init__(
        self, *, max: int, reached: int, thread: str | None = None, run_id: str | None = None
    ) -> None:
        super().__init__(
            f"step {reached} was reached and max_steps is {max}: raise max_steps in "
            "ExecutionOptions, or look for the loop that does not end",
            thread=thread,
            run_id=run_id,
        )
        self.max = max
        self.reached = reached


class CycleDetected(RunError):
    """``node`` came back within the window; ``recent`` is the window, oldest first."""

    code = "MC203"

    def __init__(
        self,
        *,
        node: str,
        recent: Sequence[str],
        strict: bool = False,
        thread: str | None = None,
        run_id: str | None = None,
    ) -> None:
        why = "and strict cycle detection is on" if strict else "and nothing in the state changed"
        super().__init__(
            f"node '{node}' came round again {why} (recent nodes: {' -> '.join(recent)}); "
            "a node on the loop should change the state; cycle_detection=False allows it as it is",
            thread=thread,
            run_id=run_id,
        )
        self.node = node
        self.recent = tuple(recent)
        self.strict = strict


class NodeTimeout(RunError):
    """``node`` ran longer than ``seconds``."""

    code = "MC204"

    def __init__(
        self, *, node: str, seconds: float, thread: str | None = None, run_id: str | None = None
    ) -> None:
        super().__init__(
            f"node '{node}' took longer than {seconds:g} s", thread=thread, run_id=run_id
        )
        self.node = node
        self.seconds = seconds


class RunTimeout(RunError):
    """The run took longer than ``seconds``. What was committed stays."""

    code = "MC205"

    def __init__(
        self, *, seconds: float, thread: str | None = None, run_id: str | None = None
    ) -> None:
        super().__init__(
            f"the run took longer than {seconds:g} s and was stopped; what was committed stays, "
            "and resume() goes on from there",
            thread=thread,
            run_id=run_id,
        )
        self.seconds = seconds


class RunCancelled(RunError):
    """The run was asked to stop. What was committed stays."""

    code = "MC206"

    def __init__(self, *, thread: str | None = None, run_id: str | None = None) -> None:
        super().__init__(
            "the run was cancelled; what was committed stays, and resume() goes on from there",
            thread=thread,
            run_id=run_id,
        )


class InvalidUpdate(RunError):
    """A node returned something that is not an update of this state."""

    code = "MC207"

    def __init__(self, message: str, *, node: str, key: str | None = None) -> None:
        super().__init__(message)
        self.node = node
        self.key = key


class RoutingError(RunError):
    """No edge leads on from ``node``, or its router named a node that it had not declared."""

    code = "MC208"

    def __init__(self, message: str, *, node: str) -> None:
        super().__init__(message)
        self.node = node


class AttemptsExhausted(RunError):
    """``node`` was tried ``attempts`` times, and the process died each time."""

    code = "MC209"

    def __init__(
        self, *, node: str, attempts: int, thread: str | None = None, run_id: str | None = None
    ) -> None:
        super().__init__(
            f"node '{node}' was started {attempts} times and never came to an end: the process "
            "died each time; find out why before you resume",
            thread=thread,
            run_id=run_id,
        )
        self.node = node
        self.attempts = attempts


class CommandFailed(RunError):
    """A command ended with another ``exit_code`` than 0, or took too long (``None``).

    ``output`` is what it printed, within bounds; it is data and never part of the message.
    """

    code = "MC220"

    def __init__(
        self, message: str, *, command: str, exit_code: int | None, output: str = ""
    ) -> None:
        super().__init__(message)
        self.command = command
        self.exit_code = exit_code
        self.output = output


class FileRefused(RunError):
    """A file that a node declares is missing, or is something that may not be used."""

    code = "MC221"

    def __init__(self, message: str, *, path: str, node: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.node = node
