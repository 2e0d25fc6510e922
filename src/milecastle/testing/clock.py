from __future__ import annotations

_START = 1_700_000_000_000_000


class ManualClock:
    """A clock for tests: time moves only by ``advance``, and ids are sequential.

    Clocks with the same ``start`` and ``series`` give the same ids; another ``series`` (up to 32
    bits) gives ids that never meet these. Not thread-safe.
    """

    def __init__(self, start: int = _START, *, series: int = 0) -> None:
        self._now = self._passed = start
        self._series = series & 0xFFFF_FFFF
        self._made = 0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> int:
        """Elapsed microseconds: setting the clock back removes none."""
        return self._passed

    def new_id(self) -> str:
        """A UUIDv7 of this clock's series."""
        self._made += 1
        stamp = (self._now // 1000) & 0xFFFF_FFFF_FFFF
        high = (stamp << 16) | 0x7000
        low = 0x8000_0000_0000_0000 | (self._series << 30) | self._made
        text = f"{(high << 64) | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def reset(self, start: int = _START) -> None:
        """Start over: the same ids will be generated."""
        self._now = self._passed = start
        self._made = 0

    def advance(self, seconds: float) -> None:
        """Move the time, also backwards: real clocks are sometimes set back."""
        passed = round(seconds * 1_000_000)
        self._now += passed
        self._passed += max(0, passed)
