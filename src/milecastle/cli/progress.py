"""Progress on long work: plain lines on stderr, after two seconds and every two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from milecastle.cli.printing import say

__all__ = ["Progress"]

T = TypeVar("T")

_EVERY: Final = 2.0


class Progress:
    """Says how far something is, so seldom that short work says nothing."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._said = clock()
        self._count = 0

    def at(self, place: str) -> None:
        """One more is done."""
        self._count += 1
        now = self._clock()
        if now - self._said >= _EVERY:
            self._said = now
            say(f"{self._what}: {self._count} done, now {place}")

    def over(self, items: Iterable[T], name: Callable[[T], str] = str) -> Iterator[T]:
        """Go through items, saying where it is."""
        for item in items:
            yield item
            self.at(name(item))
