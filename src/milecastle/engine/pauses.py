"""Signals that pause a task without a failure: it waits for a person or a time."""

from __future__ import annotations

from milecastle.model.interrupt import Interrupt


class Paused(BaseException):
    """Ends an attempt that cannot continue now. Not an error: do not catch it."""


class Asked(Paused):
    def __init__(self, interrupt: Interrupt) -> None:
        super().__init__(interrupt.id)
        self.interrupt = interrupt


class Parked(Paused):
    """Wait until a time, in microseconds since 1970. ``label`` identifies the wait."""

    def __init__(self, label: str, until: int) -> None:
        super().__init__(label, until)
        self.label = label
        self.until = until
