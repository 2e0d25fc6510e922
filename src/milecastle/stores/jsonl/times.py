"""Microseconds since 1970 as text that people read, and back, exactly.

What no calendar holds stays a number.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

__all__ = ["Moment", "to_microseconds", "to_moment"]

Moment = str | int
"""``"2026-11-15T01:26:19.123456Z"``, or a number where that cannot be written."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_moment(microseconds: int) -> Moment:
    """The time as it stands in a file."""
    seconds, rest = divmod(microseconds, 1_000_000)
    start = _second(seconds)
    return microseconds if start is None else f"{start}.{str(1_000_000 + rest)[1:]}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str | None:
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    except OverflowError:
        return None


def to_microseconds(moment: Moment) -> int:
    """The time that was written; a ``ValueError`` if it is none."""
    if isinstance(moment, int):
        return moment
    found = datetime.fromisoformat(moment)
    if found.tzinfo is None:
        raise ValueError("a time has no zone")
    return (found - _EPOCH) // _MICROSECOND
