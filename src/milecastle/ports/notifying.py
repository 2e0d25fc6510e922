"""Notifications: a store tells workers of other processes when a thread becomes due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Listening(Protocol):
    """A listener of a store, until it is closed."""

    @property
    def is_connected(self) -> bool:
        """True if the store has answered lately."""
        ...

    def close(self) -> None: ...


Listen = Callable[[Callable[[], None]], Listening]
