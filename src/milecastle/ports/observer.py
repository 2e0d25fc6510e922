"""An observer receives events. It decides nothing and cannot break a run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from milecastle.model.event import Event


class Observer(Protocol):
    """Receives events in order. What it raises is logged once and otherwise ignored."""

    def on_event(self, event: Event) -> None:
        """Handle ``event``; return quickly, because the run waits."""
        ...


@runtime_checkable
class TaskObserver(Observer, Protocol):
    """An observer that also wraps each attempt of each task, on the thread where the node runs.

    So a tracer can be the parent of what the node's own code traces. ``event`` says which run,
    node, task and attempt; it has no values of the state. The context manager meets what the node
    raises and cannot suppress it; a node that waits for a person or a time has not raised.
    """

    def wrap_task(self, event: Event, /) -> AbstractContextManager[object]:
        """The context manager to call the node in."""
        ...
