"""The system clock."""

from __future__ import annotations

from time import monotonic_ns, time_ns

from milecastle.model.ids import IdMaker

_ids = IdMaker()


class SystemClock:
    """Wall-clock time, and ids made from it."""

    def __init__(self) -> None:
        self.new_id = _ids.make

    def now(self) -> int:
        return time_ns() // 1000

    def monotonic(self) -> int:
        """Elapsed microseconds, independent of the wall clock."""
        return monotonic_ns() // 1000
