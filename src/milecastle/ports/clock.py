"""Time and ids come from outside, so a simulator can supply its own."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def now(self) -> int:
        """Microseconds since 1970 in UTC. Used for display only; order is ``seq``."""
        ...

    def monotonic(self) -> int:
        """Microseconds on a clock that is never set back, for pauses within a process."""
        ...

    def new_id(self) -> str:
        """A new unique UUIDv7."""
        ...
