"""What a node may ask of the driver that runs it: to record something now, or to tell something."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch

__all__ = ["Services"]


class Services(Protocol):
    """Called from the thread, or the event loop, that a node runs on."""

    def commit(self, batch: Batch, /) -> None:
        """Write a batch. When it returns the batch is durable."""
        ...

    def transact(self, key: ThreadKey, work: Callable[[Any], Batch], /) -> None:
        """Let ``work`` write in the transaction that commits the batch that it returns."""
        ...

    def acommit(self, batch: Batch, /) -> Coroutine[Any, Any, None]:
        """The same without stopping the event loop."""
        ...

    def emit(self, event: Event, /) -> object:
        """Tell an event. May wait until whoever reads the stream has caught up."""
        ...

    def aemit(self, event: Event, /) -> Coroutine[Any, Any, None]:
        """The same without stopping the event loop."""
        ...
