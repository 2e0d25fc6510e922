"""Facts about the running task, from libraries above the engine to whoever observes it.

Without an observer that wants them, they go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Annotate = Callable[[dict[str, Any]], None]

_annotate: ContextVar[Annotate | None] = ContextVar("milecastle_annotate", default=None)


def annotate(**facts: Any) -> None:
    """Add facts: names and numbers, never a value of the state."""
    told = _annotate.get()
    if told is not None:
        told(facts)


@contextmanager
def annotated(told: Annotate) -> Generator[None]:
    """Let ``told`` have the facts of the code in this context."""
    token = _annotate.set(told)
    try:
        yield
    finally:
        _annotate.reset(token)
