"""A store's clock, as kept by a worker: machine clocks decide nothing."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from milecastle.ports.claims import ClaimStore
from milecastle.ports.clock import Clock


class StoreClock:
    """A store's time when it was last asked, and how long ago that was.

    It is never ahead of the store when it is set. ``ticks`` are seconds that pass and never jump.
    """

    def __init__(
        self, store: ClaimStore, ids: Clock, ticks: Callable[[], float] = monotonic
    ) -> None:
        self.new_id = ids.new_id
        self._store = store
        self._ticks = ticks
        self._ahead: int | None = None

    def set(self) -> None:
        self._ahead = self._store.now() - self._passed()

    def reach(self, time: int) -> None:
        self._ahead = max(self.now(), time) - self._passed()

    def now(self) -> int:
        if self._ahead is None:
            self.set()
        return (self._ahead or 0) + self._passed()

    def monotonic(self) -> int:
        return self._passed()

    def _passed(self) -> int:
        return round(self._ticks() * 1_000_000)
