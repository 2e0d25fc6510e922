"""The clock of the machine."""

from __future__ import annotations

from time import monotonic_ns, time_ns

from milecastle.model.ids import IdMaker

_ids = IdMaker()


class SystemClock:
    """Wall-clock time, and ids made from it."""

    def __init__(self) -> None:
        self.new_id = _ids.make

    def now(self) -> int:
        """Microseconds since 1970 in UTC."""
        return time_ns() // 1000

    def monotonic(self) -> int:
        """Microseconds that pass, whatever the wall clock is set to."""
        return monotonic_ns() // 1000
