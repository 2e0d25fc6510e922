"""Stopping a run: its engine is told, and may still ask for its record to be closed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from milecastle.engine.effects import Commit, Effect, Emit, Stopped
from milecastle.engine.plan import Ending
from milecastle.errors import RunCancelled

__all__ = ["advance", "last_effects"]

Last = Generator[Commit | Emit, Exception | None, None]


def last_effects(effects: Generator[Effect, Any, Ending]) -> Last:
    """What a run still wants done when it is told to stop; is sent what that raised."""
    error: BaseException | None = Stopped(RunCancelled())
    try:
        while True:
            effect = effects.throw(error) if error is not None else effects.send(None)
            error = (yield effect) if isinstance(effect, Commit | Emit) else None
    except (StopIteration, RunCancelled, Stopped):
        return


def advance(last: Last, error: Exception | None) -> Commit | Emit | None:
    """The next of these effects; ``None`` when there is none left."""
    try:
        return last.send(error)
    except StopIteration:
        return None
