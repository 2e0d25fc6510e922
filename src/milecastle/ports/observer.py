"""An observer receives events. It decides nothing and cannot break a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from milecastle.model.event import Event
from milecastle.model.run import Segment


class Observer(Protocol):
    """Receives events in order. An exception is logged once and otherwise ignored."""

    def on_event(self, event: Event) -> None:
        """Handle ``event``; return quickly, because the run waits."""
        ...


@runtime_checkable
class TaskObserver(Observer, Protocol):
    """An observer wrapping each task attempt, on the node's thread.

    So a tracer can be the parent of the node's own traces. ``event`` says which run, node, task and
    attempt; it has no state values. The context manager meets the node's exception and
    cannot suppress it; a node waiting for a person or a time has not raised.
    """

    def wrap_task(self, event: Event, /) -> AbstractContextManager[object]:
        """Context manager for calling the node."""
        ...


@runtime_checkable
class MessageObserver(Observer, Protocol):
    """An observer that connects a message's sender with the run receiving it."""

    def message_sent(self) -> Mapping[str, str]:
        """Data to store with a message sent now. No state values."""
        ...

    def message_received(self, run_id: str, stored: Mapping[str, str], /) -> None:
        """A run received a message with this data."""
        ...


@runtime_checkable
class TracingObserver(TaskObserver, Protocol):
    """An observer that follows a run across processes, and sees its commits."""

    def is_on(self) -> bool:
        """True if it wants to see a new run; if not, no event is created for it."""
        ...

    def begin_segment(self, segment: Segment, /) -> Mapping[str, str]:
        """A segment starts, before its first event; return data to store with the run.

        That is the next segment's ``carried``, wherever it runs. No state values.
        """
        ...

    def end_segment(self, run_id: str, /) -> None:
        """The segment ended in any way; all its events were reported."""
        ...

    def wrap_commit(self, event: Event, /) -> AbstractContextManager[object]:
        """The context manager to commit in; it meets the store's exception.

        ``event`` is the ``checkpoint_save`` to be; its ``run_id`` is empty, and its ``seq``
        ``None``, if no entry is written. ``data`` has the entry's ``source``, and the number
        of ``superseded`` runs.
        """
        ...
