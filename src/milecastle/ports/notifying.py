"""Notifications: a store tells workers of other processes when a thread becomes due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Listen", "Listening"]


class Listening(Protocol):
    """A listener of a store, until it is closed."""

    @property
    def is_connected(self) -> bool:
        """Whether it can hear: the store has answered it lately."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


Listen = Callable[[Callable[[], None]], Listening]
