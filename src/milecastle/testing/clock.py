"""A clock that stands still until it is told to move, and whose ids can be foretold."""

from __future__ import annotations

__all__ = ["ManualClock"]

_START = 1_700_000_000_000_000


class ManualClock:
    """A clock for tests: time moves by ``advance`` only, and ids are counted.

    Clocks with the same ``start`` and ``series`` give the same ids; another ``series`` (up to 32
    bits) gives ids that never meet these. Not thread-safe.
    """

    def __init__(self, start: int = _START, *, series: int = 0) -> None:
        """``start`` is in microseconds since 1970."""
        self._now = start
        self._series = series & 0xFFFF_FFFF
        self._made = 0

    def now(self) -> int:
        """Microseconds since 1970 in UTC."""
        return self._now

    def new_id(self) -> str:
        """A UUIDv7 of this clock's series."""
        self._made += 1
        stamp = (self._now // 1000) & 0xFFFF_FFFF_FFFF
        high = (stamp << 16) | 0x7000
        low = 0x8000_0000_0000_0000 | (self._series << 30) | self._made
        text = f"{(high << 64) | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def reset(self, start: int = _START) -> None:
        """Begin anew: the same ids will be made."""
        self._now, self._made = start, 0

    def advance(self, seconds: float) -> None:
        """Move the time, backwards too: real clocks are set back at times."""
        self._now += round(seconds * 1_000_000)
