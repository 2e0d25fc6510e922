"""Facts about the running task, from libraries above the engine to observers.

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
    """Add facts: names and numbers, never a state value."""
    told = _annotate.get()
    if told is not None:
        told(facts)


@contextmanager
def annotated(told: Annotate) -> Generator[None]:
    """Pass facts from code in this context to ``told``."""
    token = _annotate.set(told)
    try:
        yield
    finally:
        _annotate.reset(token)
