"""Notifications: a store tells other processes' workers when a thread becomes due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Listening(Protocol):
    """A store's listener, until it is closed."""

    @property
    def is_connected(self) -> bool:
        """True if the store has answered lately."""
        ...

    def close(self) -> None: ...


Listen = Callable[[Callable[[], None]], Listening]
