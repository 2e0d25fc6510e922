"""Every exception that Milecastle raises.

::

    MilecastleError
    |-- DefinitionError            MC100  the graph is wrong; .problems lists everything at once
    |-- RunError
    |   |-- ExecutionError         MC201  a node failed
    |   |-- MaxStepsExceeded       MC202  the step limit was reached
    |   |-- CycleDetected          MC203  a node came back and nothing had changed
    |   |-- NodeTimeout            MC204  a node took longer than it may
    |   |-- RunTimeout             MC205  the whole run took longer than it may
    |   |-- RunCancelled           MC206  the run was asked to stop
    |   |-- InvalidUpdate          MC207  a node returned something that is not an update
    |   `-- RoutingError           MC208  no edge, or an undeclared one, leads on from a node
    |-- RecoveryError
    |   |-- ResumeRefused          MC301  the thread does not fit this graph, or cannot go on
    |   `-- InvalidRequest         MC302  the call names something that is not there
    |-- StoreError
    |   |-- Conflict               MC401  another writer appended first
    |   |-- Corrupted              MC402  stored bytes are damaged
    |   |-- Unavailable            MC403  the store cannot be reached
    |   `-- FormatTooNew           MC404  written by a newer version
    `-- CodecError                 MC500  bytes that cannot be decoded
        |-- UnserializableState    MC501  a value that cannot be stored
        `-- UntrustedFile          MC502  a file that will not be opened

Rules:

- A message says what happened, to which thread, run and node, and what to do.
- Values of the state never appear in a message; paths and types do.
- Data is in attributes, and every error survives pickling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from milecastle.model.problem import Problem

__all__ = [
    "CodecError",
    "Conflict",
    "Corrupted",
    "CycleDetected",
    "DefinitionError",
    "ExecutionError",
    "FormatTooNew",
    "InvalidRequest",
    "InvalidUpdate",
    "MaxStepsExceeded",
    "MilecastleError",
    "NodeTimeout",
    "RecoveryError",
    "ResumeRefused",
    "RoutingError",
    "RunCancelled",
    "RunError",
    "RunTimeout",
    "StoreError",
    "Unavailable",
    "UnserializableState",
    "UntrustedFile",
]


class MilecastleError(Exception):
    """The root of the tree. ``code`` is stable and has a page in the docs."""

    code: ClassVar[str] = "MC000"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[MilecastleError], args: tuple[Any, ...], data: dict[str, Any]
) -> MilecastleError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(data)
    return error


class DefinitionError(MilecastleError):
    """The graph cannot be compiled. ``problems`` holds all of them, in source order."""

    code = "MC100"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        title = f"the graph has {count} problem{'s' if count != 1 else ''}:"
        super().__init__("\n".join([title, *(f"  {problem}" for problem in self.problems)]))


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


class RecoveryError(MilecastleError):
    """A thread cannot go on as asked."""

    code = "MC300"


class ResumeRefused(RecoveryError):
    """The thread will not be resumed; ``reasons`` gives every reason."""

    code = "MC301"

    def __init__(self, thread: str, reasons: Sequence[str]) -> None:
        self.thread = thread
        self.reasons = tuple(reasons)
        super().__init__(f"thread '{thread}' was not resumed: " + "; ".join(self.reasons))


class InvalidRequest(RecoveryError):
    """The call names a thread, a checkpoint or an argument that is not there."""

    code = "MC302"


class StoreError(MilecastleError):
    """A store could not do what was asked."""

    code = "MC400"


class Conflict(StoreError):
    """Another writer appended to the thread first. This writer must stop.

    ``expected`` is the seq that this writer wanted; ``head`` is the thread's newest.
    """

    code = "MC401"

    def __init__(self, *, tenant: str, thread: str, expected: int, head: int) -> None:
        super().__init__(
            f"thread '{thread}' moved on: this writer wanted seq {expected} and the head is "
            f"already {head}; another run owns the thread, so read it again before writing"
        )
        self.tenant = tenant
        self.thread = thread
        self.expected = expected
        self.head = head


class Corrupted(StoreError):
    """Stored bytes are damaged. ``place`` says where."""

    code = "MC402"

    def __init__(self, message: str, *, place: str) -> None:
        super().__init__(f"{message} at {place}")
        self.place = place


class Unavailable(StoreError):
    """The store cannot be reached, or was closed."""

    code = "MC403"


class FormatTooNew(StoreError):
    """The data was written by a newer format version than this library reads."""

    code = "MC404"

    def __init__(self, *, found: int, supported: int, place: str) -> None:
        super().__init__(
            f"{place} has format version {found}; this version of milecastle reads up to "
            f"{supported}: upgrade milecastle"
        )
        self.found = found
        self.supported = supported
        self.place = place


class CodecError(MilecastleError):
    """Bytes that do not decode: damaged, of an unknown type, or over a limit."""

    code = "MC500"


class UnserializableState(CodecError):
    """A value that cannot be stored. ``path`` is where (``$.docs[3].lock``)."""

    code = "MC501"

    def __init__(self, message: str, *, path: str, type_name: str, node: str | None = None) -> None:
        by = f" (returned by node '{node}')" if node else ""
        super().__init__(f"the value at {path}{by} cannot be stored: {message}")
        self.reason = message
        self.path = path
        self.type_name = type_name
        self.node = node


class UntrustedFile(CodecError):
    """A file that will not be opened because nothing vouches for it."""

    code = "MC502"
