"""What a run may ask of the driver while nodes run: to record something now, or to emit it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Segment
from milecastle.ports.files import PlacedFiles
from milecastle.ports.store import Batch
from milecastle.ports.task import TaskPort


class Services(Protocol):
    """Called from the thread, or the event loop, that a node runs on."""

    def enter(self, run_id: str, port: TaskPort, /) -> None:
        """A run begins: its tasks turn to this port."""
        ...

    def begin_segment(self, segment: Segment, /) -> Mapping[str, str]:
        """Tell observers that a segment starts; what they store with the run."""
        ...

    def end_segment(self, run_id: str, /) -> None:
        """Tell observers that a segment is over."""
        ...

    def commit(self, batch: Batch, /) -> None:
        """Write a batch. When it returns the batch is durable."""
        ...

    def transact(self, key: ThreadKey, work: Callable[[Any], Batch], /) -> bool:
        """Let ``work`` write in the transaction that commits the batch that it returns.

        ``False`` if the batch was there already, and nothing was written.
        """
        ...

    def files(self, tenant: str, *, sealed: bool) -> PlacedFiles:
        """The files of a tenant; ``InvalidRequest`` if the store has none."""
        ...

    def acommit(self, batch: Batch, /) -> Coroutine[Any, Any, None]:
        """The same without blocking the event loop."""
        ...

    def heartbeat(self) -> None:
        """A node is still at work."""
        ...

    def publish(self, event: Event, /) -> None:
        """Send an emitted value to readers in other processes, if any may read; never waits."""
        ...

    def emit(self, event: Event, /) -> object:
        """Emit an event. May wait until the reader of the stream has caught up."""
        ...

    def aemit(self, event: Event, /) -> Coroutine[Any, Any, None]:
        """The same without blocking the event loop."""
        ...
