from __future__ import annotations

from time import monotonic_ns, time_ns

from milecastle.model.ids import IdMaker

_ids = IdMaker()


class SystemClock:
    def __init__(self) -> None:
        self.new_id = _ids.make

    def now(self) -> int:
        return time_ns() // 1000

    def monotonic(self) -> int:
        return monotonic_ns() // 1000
