"""Driver services for running nodes: record now, or emit."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Segment
from milecastle.ports.buckets import Buckets
from milecastle.ports.files import PlacedFiles
from milecastle.ports.store import Batch
from milecastle.ports.task import TaskPort

T = TypeVar("T")


class Chunks(Protocol):
    """Values committed in order, a few at a time: see ``Services.chunks``."""

    def add(self, value: Any, /) -> int:
        """Add a value; return its offset."""
        ...

    def flush(self) -> None: ...

    def aflush(self) -> Coroutine[Any, Any, None]: ...

    def close(self) -> tuple[int, list[Any]]:
        """End it: values that may not be committed, with the first one's offset."""
        ...


class Services(Protocol):
    """Called on a node's thread or event loop."""

    def enter(self, run_id: str, port: TaskPort, /) -> None: ...

    def begin_segment(self, segment: Segment, /) -> Mapping[str, str]:
        """Report a segment's start; return observers' data for the run."""
        ...

    def message_sent(self) -> Mapping[str, str]: ...

    def message_received(self, run_id: str, stored: Mapping[str, str], /) -> None:
        """Report a received message by what observers stored with it."""
        ...

    def end_segment(self, run_id: str, /) -> None: ...

    def check(self) -> None:
        """Raise if the run must stop, or timed out."""
        ...

    def commit(self, batch: Batch, /) -> None:
        """Write a batch. On return it is durable."""
        ...

    def transact(self, key: ThreadKey, work: Callable[[Any], Batch], /) -> bool:
        """Let ``work`` write in the transaction committing the batch it returns.

        ``False`` if the batch was there already, and nothing was written.
        """
        ...

    def files(self, tenant: str, *, sealed: bool) -> PlacedFiles:
        """A tenant's files; ``InvalidRequest`` if the store has none."""
        ...

    def buckets(self) -> Buckets:
        """The store's buckets; ``InvalidRequest`` if it has none."""
        ...

    def acommit(self, batch: Batch, /) -> Coroutine[Any, Any, None]: ...

    def call(self, function: Callable[..., T], /, *args: Any) -> T:
        """Call a function that uses the store; refused where it would block an event loop."""
        ...

    def acall(self, function: Callable[..., T], /, *args: Any) -> Coroutine[Any, Any, T]: ...

    def chunks(self, offset: int, make: Callable[[int, list[Any]], Batch], /) -> Chunks:
        """Commits values soon after they are added; ``make`` makes a chunk's batch."""
        ...

    def heartbeat(self) -> None: ...

    def publish(self, event: Event, /) -> None:
        """Send an emitted value to readers in other processes; never waits."""
        ...

    def emit(self, event: Event, /) -> object:
        """Emit an event. May wait until the reader has caught up."""
        ...

    def aemit(self, event: Event, /) -> Coroutine[Any, Any, None]: ...
