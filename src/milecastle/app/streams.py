"""What who reads a stream gets to see, by mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec.structs

from milecastle.app.results import Result
from milecastle.errors import InvalidRequest
from milecastle.model.event import Event

__all__ = ["StreamMode", "selector", "waiting_events"]

StreamMode = Literal["updates", "state", "events"]


def selector(mode: StreamMode) -> Callable[[Event], Event | None]:
    """The filter of a mode: interrupts are always seen."""
    if mode == "updates":
        return _updates
    if mode == "state":
        return _states
    if mode == "events":
        return lambda event: event
    raise InvalidRequest(f"there is no stream mode {mode!r}; use 'updates', 'state' or 'events'")


def _updates(event: Event) -> Event | None:
    if event.type == "node_complete":
        return msgspec.structs.replace(event, type="update")
    return event if event.type in ("interrupt", "emit", "sleep") else None


def _states(event: Event) -> Event | None:
    return event if event.type in ("state", "interrupt", "sleep") else None


def waiting_events(waiting: Result[Any]) -> list[Event]:
    """What a stream of a thread that waits consists of: the interrupts that it waits at."""
    return [
        Event(
            type="interrupt",
            run_id=waiting.run_id,
            key=waiting.thread,
            step=waiting.step,
            node=found.node,
            state=waiting.state,
            data={"id": found.id, "question": found.question, "show": found.show},
        )
        for found in waiting.interrupts
    ]
