"""Every exception that Milecastle raises.

::

    MilecastleError
    |-- DefinitionError            MC100  the graph is wrong; .problems lists everything at once
    |-- RunError
    |   |-- ExecutionError         MC201  a node failed
    |   |-- MaxStepsExceeded       MC202  the step limit was exceeded
    |   |-- CycleDetected          MC203  a node ran again and the state had not changed
    |   |-- NodeTimeout            MC204  a node exceeded its timeout
    |   |-- RunTimeout             MC205  the run exceeded its timeout
    |   |-- RunCancelled           MC206  the run was cancelled
    |   |-- InvalidUpdate          MC207  a node returned something that is not an update
    |   |-- RoutingError           MC208  a node has no next node, or an undeclared one
    |   |-- AttemptsExhausted      MC209  a node used all of its attempts
    |   |-- RunFailed              MC210  a run failed in another process
    |   |-- ProcessLost            MC211  the process that ran a node ended
    |   |-- TimedOut               MC212  a wait passed its deadline without an answer
    |   |-- StepFailed             MC213  a step of a flow failed
    |   |-- CommandFailed          MC220  a command failed
    |   `-- FileRefused            MC221  a declared file is missing or not allowed
    |-- RecoveryError
    |   `-- ResumeRefused          MC301  the thread cannot be resumed with this graph
    |-- InvalidRequest             MC302  the call is not valid
    |   |-- InvalidAnswer          MC303  the answer is not valid for its question
    |   |-- AlreadyAnswered        MC304  the question was answered
    |   |-- NotAsked               MC305  the question is not open, and was not answered
    |   |-- ThreadNotFound         MC306  there is no such thread
    |   `-- MailboxFull            MC307  a thread has too many unread messages
    |-- StoreError
    |   |-- Conflict               MC401  another writer appended first
    |   |   `-- RunInProgress      MC405  a live process drives the thread
    |   |-- MemoryChanged          MC407  an item of memory has another version
    |   |-- Corrupted              MC402  stored bytes are damaged
    |   |-- Unavailable            MC403  the store is unavailable
    |   |   `-- ShardMoved         MC406  the thread is in another database
    |   `-- FormatTooNew           MC404  written by a newer version
    |-- CodecError                 MC500  bytes that cannot be decoded
    |   |-- UnserializableState    MC501  a value that cannot be stored
    |   |-- UntrustedFile          MC502  an untrusted file
    |   |-- NoObjects              MC507  the data is in object storage, which was not given
    |   `-- EncryptionError        MC503  encrypted bytes that cannot be decrypted
    |       |-- NoKeyring          MC504  the data is encrypted, but no keyring was given
    |       |-- KeyNotFound        MC505  a key was not found
    |       `-- PlaintextRefused   MC506  the data is not encrypted but must be
    `-- RequestRefused             MC600  a server refused a client's request

Rules:

- A message says what happened, to which thread, run and node, and the remedy.
- Values of the state never appear in a message; paths and types do.
- A message names a subgraph's thread by its parent's thread and the nodes leading to it
  (``t > sub``); the attribute ``thread`` has its name in the store.
- Data is in attributes, and every error survives pickling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Protocol

import msgspec

__all__ = [
    "AlreadyAnswered",
    "AttemptsExhausted",
    "CodecError",
    "CommandFailed",
    "Conflict",
    "Corrupted",
    "CycleDetected",
    "DefinitionError",
    "EncryptionError",
    "ExecutionError",
    "FileRefused",
    "FormatTooNew",
    "InvalidAnswer",
    "InvalidRequest",
    "InvalidUpdate",
    "KeyNotFound",
    "MailboxFull",
    "MaxStepsExceeded",
    "MemoryChanged",
    "MilecastleError",
    "NoKeyring",
    "NoObjects",
    "NodeTimeout",
    "NotAsked",
    "Place",
    "PlaintextRefused",
    "Problem",
    "ProcessLost",
    "RecoveryError",
    "RequestRefused",
    "ResumeRefused",
    "RoutingError",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunInProgress",
    "RunTimeout",
    "ShardMoved",
    "StepFailed",
    "StoreError",
    "ThreadNotFound",
    "TimedOut",
    "Unavailable",
    "UnserializableState",
    "UntrustedFile",
]


class Place(msgspec.Struct, frozen=True, order=True):
    """A line in the user's file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Problem(msgspec.Struct, frozen=True):
    """One finding. ``code`` is stable (``MC110``) and has a page in the docs."""

    code: str
    message: str
    place: Place | None = None
    suggestion: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{where}{self.code} {self.message}{hint}"


class RunPosition:
    """Where a run was when an error ended it; the engine fills in missing values.

    ``node`` ran or was about to run; ``path`` is every node entered in this call. ``state`` is the
    state before the node: data for the caller, never part of the message.
    """

    thread: str | None = None
    run_id: str | None = None
    node: str | None = None
    step: int | None = None
    path: tuple[str, ...] = ()
    state: Any = None


class MilecastleError(Exception):
    """The root of the tree. ``code`` is stable and has a page in the docs."""

    code: ClassVar[str] = "MC000"

    def __init__(self, message: str) -> None:
        self.message = with_readable_threads(message)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


_STEP_OF_A_PARENT = re.compile("\x1f[^\x1f']*\\.[0-9]+\x1f")
"""What is between the name of a thread and the task of a subgraph, in the name of its thread."""


def with_readable_threads(text: str) -> str:
    """Replace subgraph thread names by ``thread > node``, at every level."""
    return _STEP_OF_A_PARENT.sub(" > ", text) if "\x1f" in text else text


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def place_of(error: BaseException) -> str:
    """File and line where an exception was raised: logged instead of its message."""
    import traceback

    place = "an unknown place"
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = f"{frame.f_code.co_filename}:{line}"
    return place


def _rebuild(
    cls: type[MilecastleError], args: tuple[Any, ...], data: dict[str, Any]
) -> MilecastleError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(data)
    return error


class DefinitionError(MilecastleError):
    """The graph cannot be compiled. ``problems`` lists all problems, in source order."""

    code = "MC100"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        title = f"the graph has {count} problem{'s' if count != 1 else ''}:"
        super().__init__("\n".join([title, *(f"  {problem}" for problem in self.problems)]))


class RunError(MilecastleError, RunPosition):
    """A run failed. ``thread`` and ``run_id`` identify it, if there is a store."""

    code = "MC200"

    def __init__(
        self, message: str, *, thread: str | None = None, run_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.thread = thread
        self.run_id = run_id


class ExecutionError(RunError):
    """A node failed, or a user's reducer or router did. ``cause`` is the exception raised.

    ``state`` is the state before the node; it is data for the caller and is never
    part of the message. ``channel`` is the key whose reducer raised, if one did. ``hint`` says more
    about the cause, if more is known.
    """

    code = "MC201"
    node: str
    step: int

    def __init__(
        self,
        message: str,
        *,
        node: str,
        step: int,
        path: Sequence[str],
        state: Any,
        cause: BaseException,
        channel: str | None = None,
        hint: str = "",
        thread: str | None = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__(message, thread=thread, run_id=run_id)
        # Always known here, unlike in its base.
        self.node = node  # pyright: ignore[reportIncompatibleVariableOverride]
        self.step = step  # pyright: ignore[reportIncompatibleVariableOverride]
        self.path = tuple(path)
        self.state = state
        self.cause = cause
        self.channel = channel
        self.hint = hint

    def __str__(self) -> str:
        why = message_of(self.cause)
        said = f"{super().__str__()}: {why}" if why else super().__str__()
        return f"{said} ({self.hint})" if self.hint else said


class MaxStepsExceeded(RunError):
    """The run needed more than ``max`` steps; ``reached`` is the step it was about to run."""

    code = "MC202"

    def __init__(self, *, max: int, reached: int, node: str | None = None) -> None:
        super().__init__(
            f"step {reached} exceeds max_steps={max}: raise max_steps in "
            "ExecutionOptions, or look for a loop that never ends"
        )
        self.node = node
        self.max = max
        self.reached = reached


class CycleDetected(RunError):
    """``node`` ran again within the window; ``recent`` is the window, oldest first."""

    code = "MC203"

    def __init__(self, *, node: str, recent: Sequence[str], strict: bool = False) -> None:
        why = "and strict cycle detection is on" if strict else "and the state did not change"
        super().__init__(
            f"node '{node}' ran again {why} (recent nodes: {' -> '.join(recent)}); "
            "change the state in the loop, or allow it with cycle_detection=False"
        )
        self.node = node
        self.recent = tuple(recent)
        self.strict = strict


class NodeTimeout(RunError):
    """``node`` ran longer than ``seconds``."""

    code = "MC204"

    def __init__(self, *, node: str, seconds: float) -> None:
        super().__init__(f"node '{node}' took longer than {seconds:g} s")
        self.node = node
        self.seconds = seconds


class RunTimeout(RunError):
    """The run took longer than ``seconds``. Committed steps are saved."""

    code = "MC205"

    def __init__(self, *, seconds: float) -> None:
        super().__init__(
            f"the run took longer than {seconds:g} s and was stopped; committed steps are saved, "
            "and resume() continues from there"
        )
        self.seconds = seconds


class RunCancelled(RunError):
    """The run was cancelled. Committed steps are saved."""

    code = "MC206"

    def __init__(self, *, thread: str | None = None, run_id: str | None = None) -> None:
        super().__init__(
            "the run was cancelled; committed steps are saved, and resume() continues from there",
            thread=thread,
            run_id=run_id,
        )


class RunFailed(RunError):
    """A run failed in another process, without a retry. ``failure_type`` names the exception."""

    code = "MC210"

    def __init__(
        self,
        message: str,
        *,
        failure_type: str,
        node: str | None = None,
        thread: str | None = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__(message, thread=thread, run_id=run_id)
        self.failure_type = failure_type
        self.node = node


class InvalidUpdate(RunError):
    """A node returned something other than an update of this state."""

    code = "MC207"

    def __init__(self, message: str, *, node: str, key: str | None = None) -> None:
        super().__init__(message)
        self.node = node
        self.key = key


class RoutingError(RunError):
    """No edge of ``node`` can be taken, or its router named a node it had not declared."""

    code = "MC208"

    def __init__(self, message: str, *, node: str) -> None:
        super().__init__(message)
        self.node = node


class AttemptsExhausted(RunError):
    """``node`` was started ``attempts`` times, and the process died each time."""

    code = "MC209"

    def __init__(self, *, node: str, attempts: int) -> None:
        super().__init__(
            f"node '{node}' was started {attempts} times and never finished: the process died "
            "each time; find the cause before you resume"
        )
        self.node = node
        self.attempts = attempts


class ProcessLost(RunError):
    """The process, or the machine, that ran ``node`` ended before the node did."""

    code = "MC211"

    def __init__(self, *, node: str, how: str) -> None:
        super().__init__(f"the process that ran node '{node}' {how}")
        self.node = node
        self.how = how


class TimedOut(RunError, TimeoutError):
    """A wait passed its ``deadline``: ``interrupt(within=...)`` or ``ctx.receive(timeout=...)``.

    Catch it in the node, or have a value returned with ``otherwise=`` or ``default=``.
    """

    code = "MC212"

    def __init__(self, *, node: str, deadline: datetime, what: str = "nothing") -> None:
        when = deadline.isoformat(timespec="seconds")
        super().__init__(f"node '{node}' waited until {when}, and {what} came")
        self.node = node
        self.deadline = deadline


class StepFailed(RunError):
    """A step of a flow failed; ``error_type`` and ``reason`` are its exception's.

    The same when the flow runs again, in whatever process.
    """

    code = "MC213"

    def __init__(self, step: str, error_type: str, reason: str) -> None:
        super().__init__(f"step '{step}' failed with {error_type}: {reason}")
        self.step_name = step
        self.error_type = error_type
        self.reason = reason


class CommandFailed(RunError):
    """A command exited with an ``exit_code`` other than 0, or timed out (``None``).

    ``output`` is its output, size-limited; it is data and never part of the message.
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
    """``file``, which a node declares, is missing or not allowed."""

    code = "MC221"

    def __init__(self, message: str, *, file: str, node: str | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.node = node


class RecoveryError(MilecastleError):
    """A thread cannot continue."""

    code = "MC300"


class ResumeRefused(RecoveryError):
    """The thread or the portable file cannot be resumed; ``reasons`` lists every reason."""

    code = "MC301"

    def __init__(
        self,
        thread: str,
        reasons: Sequence[str],
        *,
        what: str = "thread",
        done: str = "resumed",
        advice: str = "",
    ) -> None:
        self.thread = thread
        self.reasons = tuple(reasons)
        told = [*self.reasons, advice] if advice else self.reasons
        super().__init__(f"{what} '{thread}' was not {done}: " + "; ".join(told))


class InvalidRequest(MilecastleError):
    """The call has an invalid argument, or names a thread or checkpoint that does not exist."""

    code = "MC302"


class InvalidAnswer(InvalidRequest):
    """An invalid answer to a question. The thread is unchanged."""

    code = "MC303"


class AlreadyAnswered(InvalidRequest):
    """The question was answered, or its thread has left the step that asked it."""

    code = "MC304"


class NotAsked(InvalidRequest):
    """The thread has no such open question: it may be asked later."""

    code = "MC305"


class ThreadNotFound(InvalidRequest):
    """There is no thread of this name in the tenant. ``advice`` is the remedy."""

    code = "MC306"

    def __init__(self, *, tenant: str, thread: str, advice: str = "") -> None:
        self.tenant = tenant
        self.thread = thread
        hint = f": {advice}" if advice else ""
        super().__init__(f"there is no thread '{thread}' in tenant '{tenant}'{hint}")


class MailboxFull(InvalidRequest):
    """The thread has too many unread messages: nothing was stored."""

    code = "MC307"


class OwningProcess(Protocol):
    """The process driving a run, as a run record names it (``Owner``)."""

    @property
    def host(self) -> str: ...

    @property
    def pid(self) -> int: ...


class StoreError(MilecastleError, RunPosition):
    """A store operation failed. An error that ended a run has the run's position."""

    code = "MC400"


_OTHER_OWNER = "another run owns the thread, so read the thread again before writing"


class Conflict(StoreError):
    """Another writer appended to the thread first. This writer must stop.

    ``expected`` is the seq this writer tried to append; ``head`` is the thread's newest seq.
    ``expected`` is 0 if the checkpoint this writer continues is not in the thread.
    ``happened`` replaces the meaning of these two.
    """

    code = "MC401"

    def __init__(
        self, *, tenant: str, thread: str, expected: int, head: int, happened: str = ""
    ) -> None:
        if happened:
            pass
        elif not expected:
            happened = (
                "does not have the checkpoint that this writer continues; that was deleted, or it "
                "is not of this thread"
            )
        elif expected == head + 1:
            happened = (
                f"was deleted and created again: its head is seq {head} again, but not the entry "
                f"that this writer read; {_OTHER_OWNER}"
            )
        else:
            happened = (
                f"has changed: this writer expected to append seq {expected}, but the head is "
                f"already at seq {head}; {_OTHER_OWNER}"
            )
        self._keep(f"thread '{thread}' {happened}", tenant, thread, expected, head)

    def _keep(self, message: str, tenant: str, thread: str, expected: int, head: int) -> None:
        super().__init__(message)
        self.tenant = tenant
        self.thread = thread
        self.expected = expected
        self.head = head


class RunInProgress(Conflict):
    """A live process drives the thread. Nothing was read or written.

    ``run_id`` is the run, ``owner`` its process (``owner.host``, ``owner.pid``), ``since`` its
    start. ``public_message`` does not name the process.
    """

    code = "MC405"

    def __init__(
        self,
        *,
        tenant: str,
        thread: str,
        head: int,
        run_id: str,
        owner: OwningProcess,
        since: datetime,
        who: str,
    ) -> None:
        busy = f"thread '{thread}' is in progress: run {run_id}, driven by"
        began = f"since {since.isoformat(timespec='seconds')}; wait for it, or call with "
        advice = "take_over=True to take the thread from it"
        self.public_message = f"{busy} a live process {began}{advice}"
        self._keep(f"{busy} {who} {began}{advice}", tenant, thread, head + 1, head)
        self.run_id = run_id
        self.owner = owner
        self.since = since


class MemoryChanged(StoreError):
    """An item of long-term memory no longer has the version ``if_version=`` names.

    ``place`` is its path and key. Nothing was written. A step is repeated three times first.
    """

    code = "MC407"

    def __init__(self, *, namespace: tuple[str, ...], key: str, place: tuple[bytes, str]) -> None:
        super().__init__(
            f"item {key!r} of namespace {namespace!r} no longer has the version that if_version= "
            "names: read it again, and write on top of that"
        )
        self.namespace = namespace
        self.key = key
        self.place = place


class Corrupted(StoreError):
    """Stored bytes are damaged. ``place`` says where."""

    code = "MC402"

    def __init__(self, message: str, *, place: str) -> None:
        super().__init__(f"{message} at {place}")
        self.place = place


class Unavailable(StoreError):
    """The store cannot be reached, or was closed."""

    code = "MC403"


class ShardMoved(Unavailable):
    """The thread's shard is in another database. Nothing was written.

    ``version`` is that of the map which the database knows, ``destination`` the name of the
    database that got the shard, if this one knows it.
    """

    code = "MC406"

    def __init__(
        self,
        *,
        tenant: str,
        thread: str,
        shard: int,
        database: str,
        version: int,
        destination: str | None,
    ) -> None:
        to = f" to database '{destination}'" if destination else ""
        super().__init__(
            f"thread '{thread}' is in shard {shard}, which is not in database '{database}': "
            f"moved{to}, map version {version}; is that database up, and in this process's file?"
        )
        self.tenant = tenant
        self.thread = thread
        self.shard = shard
        self.database = database
        self.version = version
        self.destination = destination


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
    """Undecodable bytes: damaged, of an unknown type, or over a limit."""

    code = "MC500"


class UnserializableState(CodecError):
    """An unstorable value. ``path`` is where (``$.docs[3].lock``).

    Keys of a dict are data: the message has ``place``, the path with their positions
    (``$.docs[3][key 0]``).
    """

    code = "MC501"

    def __init__(
        self,
        message: str,
        *,
        path: str,
        type_name: str,
        node: str | None = None,
        place: str | None = None,
    ) -> None:
        self.place = place or path
        by = f" (returned by node '{node}')" if node else ""
        super().__init__(f"the value at {self.place}{by} cannot be stored: {message}")
        self.reason = message
        self.path = path
        self.type_name = type_name
        self.node = node


class UntrustedFile(CodecError):
    """An untrusted file, not opened."""

    code = "MC502"


class NoObjects(CodecError):
    """Stored bytes name objects, but the store was opened without its object storage."""

    code = "MC507"


class EncryptionError(CodecError):
    """Decryption failed: the bytes were moved or changed, or need another key."""

    code = "MC503"

    def __init__(self, message: str, *, thread: str | None = None, seq: int = 0) -> None:
        super().__init__(message)
        self.thread = thread
        self.seq = seq


class NoKeyring(EncryptionError):
    """The entry ``seq`` is encrypted, but this app or store has no keyring."""

    code = "MC504"


class KeyNotFound(EncryptionError):
    """A key is missing: one of the keyring's, or the thread's own."""

    code = "MC505"


class PlaintextRefused(EncryptionError):
    """The entry ``seq`` of ``thread`` is not encrypted, and the reader requires encryption."""

    code = "MC506"


class RequestRefused(MilecastleError):
    """A server refused a request of ``milecastle.client``, for a reason that no other error has.

    ``status`` is the HTTP status, ``problem`` the server's own code (``MC602``), if it has one.
    """

    code = "MC600"

    def __init__(self, message: str, *, status: int, problem: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
