"""An observer is told what happens. It decides nothing and cannot break a run."""

from __future__ import annotations

from typing import Protocol

from milecastle.model.event import Event

__all__ = ["Observer"]


class Observer(Protocol):
    """Receives events in order. What it raises is logged once and otherwise ignored."""

    def on_event(self, event: Event) -> None:
        """Take note of ``event``; return soon, because the run waits."""
        ...
