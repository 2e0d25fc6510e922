"""Virtual time: a row of events, each at its moment, for processes that may be stopped or dead.

An event may let time pass while it happens (``pass_time``): then others happen inside of it, as
if its code had been held up there. One that is nested deeply does not wait any more.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Protocol

__all__ = ["SECOND", "START", "Actor", "Timeline"]

SECOND = 1_000_000
START = 1_700_000_000_000_000
_DEEPEST = 4


class Actor(Protocol):
    """Whose event it is: one that is stopped continues later, one that is dead never does."""

    is_dead: bool
    stopped_until: int


class Timeline:
    """``now`` is in microseconds since 1970."""

    def __init__(self, random: Random) -> None:
        self.now = START
        self.random = random
        self._events: list[tuple[int, int, Actor | None, Callable[[], None]]] = []
        self._added = 0
        self._depth = 0

    def monotonic(self) -> float:
        """The time in seconds, for code that measures."""
        return self.now / SECOND

    def at(self, moment: int, act: Callable[[], None], actor: Actor | None = None) -> None:
        """Do something at a time."""
        self._added += 1
        heappush(self._events, (max(moment, self.now), self._added, actor, act))

    def after(self, seconds: float, act: Callable[[], None], actor: Actor | None = None) -> None:
        """Do something in some seconds."""
        self.at(self.now + round(seconds * SECOND), act, actor)

    def run(self, until: int) -> None:
        """Let everything happen up to a time."""
        events = self._events
        while events and events[0][0] <= until:
            moment, _, actor, act = heappop(events)
            self.now = max(self.now, moment)
            if actor is None:
                act()
            elif actor.stopped_until > self.now:
                self.at(actor.stopped_until, act, actor)
            elif not actor.is_dead:
                act()
        self.now = max(self.now, until)

    def pass_time(self, until: int) -> None:
        """Let others do something before the caller continues."""
        if self._depth < _DEEPEST and until > self.now:
            self._depth += 1
            try:
                self.run(until)
            finally:
                self._depth -= 1

    def delay(self) -> float:
        """How long something takes that is usually quick, in seconds."""
        chance = self.random.random()
        if chance < 0.9:
            return chance * 0.02
        return self.random.random() * (0.3 if chance < 0.98 else 1.0)
