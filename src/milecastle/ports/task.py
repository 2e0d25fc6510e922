"""A task's calls to its run while it runs, in this process by a call.

Every argument and every answer is data, except the function of ``transact`` and the files, whose
place is data: an executor in another process may implement this port by messages to the one that
drives the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from milecastle.model.message import Message
from milecastle.model.task import RunTask, TaskFacts
from milecastle.ports.buckets import Turn
from milecastle.ports.files import PlacedFiles
from milecastle.ports.mailbox import Sent

MISSING: Final = object()
"""What is not on record."""


Draw = Literal["take", "settle", "hold"]
"""A call of ``Buckets``."""


class NewChild(NamedTuple):
    """A run to be spawned. ``call`` identifies it; ``is_own``: its thread's name is derived."""

    thread: str
    input: Any
    config: Any
    call: str
    stays: bool
    is_own: bool


class TaskPort(Protocol):
    """One run, as its tasks see it. Called from the thread, or the event loop, that a node runs on.

    Raises ``InvalidRequest`` once the run has stopped: nothing more is recorded then.
    """

    def is_running(self, task: RunTask, /) -> bool: ...

    def facts(self, task: RunTask, /) -> TaskFacts: ...

    def recorded(self, task: RunTask, name: str, /) -> Any:
        """The value recorded under this name, or ``MISSING``."""
        ...

    def record(self, task: RunTask, name: str, value: Any, /) -> None:
        """Record a value under this name. On return it is durable."""
        ...

    async def arecord(self, task: RunTask, name: str, value: Any, /) -> None: ...

    def receive(self, task: RunTask, topics: Sequence[str], /) -> Message | None:
        """The oldest message in these topics that no task has received; ``None`` without one."""
        ...

    async def areceive(self, task: RunTask, topics: Sequence[str], /) -> Message | None: ...

    def send(self, task: RunTask, thread: str, value: Any, topic: str, name: str, /) -> Sent:
        """Send a message to a thread; the second with the same ``name`` writes nothing."""
        ...

    async def asend(
        self, task: RunTask, thread: str, value: Any, topic: str, name: str, /
    ) -> Sent: ...

    def spawn(self, task: RunTask, app: Any, children: Sequence[NewChild], /) -> None:
        """Submit an app's or a named graph's runs; those submitted before are found."""
        ...

    async def aspawn(self, task: RunTask, app: Any, children: Sequence[NewChild], /) -> None: ...

    def remember(self, task: RunTask, write: str, how: Mapping[str, Any], /) -> None:
        """Collect this kind of write to long-term memory; the step's commit has it."""
        ...

    async def aremember(self, task: RunTask, write: str, how: Mapping[str, Any], /) -> None: ...

    def recall(self, task: RunTask, read: str, how: Mapping[str, Any], /) -> Any:
        """Read long-term memory, and what the task has written to it."""
        ...

    async def arecall(self, task: RunTask, read: str, how: Mapping[str, Any], /) -> Any: ...

    def draw(self, task: RunTask, how: Draw, name: str, given: Sequence[Any], /) -> Turn | None:
        """Take from a store's bucket, settle or hold it; ``given``: the call's other arguments."""
        ...

    async def adraw(
        self, task: RunTask, how: Draw, name: str, given: Sequence[Any], /
    ) -> Turn | None: ...

    def deadline(self, label: str, seconds: float | None, /) -> tuple[int | None, bool]:
        """When a wait times out, in microseconds since 1970, and whether that was committed."""
        ...

    def transact(self, task: RunTask, name: str, function: Callable[[Any], Any], /) -> Any:
        """Record ``function``'s result in the transaction it writes in."""
        ...

    def files(self, task: RunTask, /) -> PlacedFiles:
        """The tenant's files; ``InvalidRequest`` if the run has none."""
        ...

    def emit(self, task: RunTask, value: Any, keep: bool = False, /) -> None:
        """Emit a value to the stream's reader; may wait until it has caught up.

        With ``keep`` it is soon stored as well, until the step ends.
        """
        ...

    async def aemit(self, task: RunTask, value: Any, keep: bool = False, /) -> None: ...

    def heartbeat(self, task: RunTask, /) -> None: ...

    def answer(self, label: str, /) -> Any:
        """The answer to a question, as plain data; ``MISSING`` if there is none yet."""
        ...

    def wake_time(self, label: str, until: int | None, seconds: float, /) -> int | None:
        """When a sleep ends, in microseconds since 1970; ``None`` if that time has come.

        A duration counts from the first time the task asked.
        """
        ...
