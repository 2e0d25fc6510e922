"""Chunks: values committed a few at a time, in order.

Rules:

- A chunk is committed when it is full, by the code that filled it, or ``DELAY`` seconds after its
  first value, by a timer. One commit at a time: a chunk is never there before an earlier one.
- Values whose commit failed are committed again with the next ones, under the same offset.
- Whoever closes it takes all values that may not be there, also those being committed now.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Lock, Timer
from typing import Any, Final

from milecastle.errors import StoreError
from milecastle.ports.store import Batch

SIZE: Final = 32
DELAY: Final = 0.05


class ValueChunks:
    """``make`` turns an offset and the values there into a batch, under this lock."""

    def __init__(
        self,
        offset: int,
        make: Callable[[int, list[Any]], Batch],
        commit: Callable[[Batch], None],
        acommit: Callable[[Batch], Coroutine[Any, Any, None]],
        delay: float | None,
    ) -> None:
        self._lock = Lock()
        self._offset = offset
        self._make = make
        self._commit = commit
        self._acommit = acommit
        self._delay = delay
        self._values: list[Any] = []
        self._committing = 0
        self._timer: Timer | None = None
        self._is_due = False
        self._is_over = False

    def add(self, value: Any) -> int:
        with self._lock:
            self._values.append(value)
            if self._timer is None and self._delay is not None:
                self._timer = Timer(self._delay, self._when_due)
                self._timer.daemon = True
                self._timer.start()
            return self._offset + len(self._values) - 1

    def flush(self) -> None:
        while (batch := self._begin()) is not None:
            is_done = False
            try:
                self._commit(batch)
                is_done = True
            finally:
                self._end(is_done)

    async def aflush(self) -> None:
        while (batch := self._begin()) is not None:
            is_done = False
            try:
                await self._acommit(batch)
                is_done = True
            finally:
                self._end(is_done)

    def close(self) -> tuple[int, list[Any]]:
        with self._lock:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            return self._offset, self._values

    def _when_due(self) -> None:
        with self._lock:
            self._timer, self._is_due = None, True
        with suppress(StoreError):  # the run's next commit reports it
            self.flush()

    def _begin(self) -> Batch | None:
        with self._lock:
            is_wanted = len(self._values) >= SIZE or (self._is_due and self._values)
            if self._is_over or self._committing or not is_wanted:
                return None
            self._is_due = False
            batch = self._make(self._offset, self._values)
            self._committing = len(self._values)
            return batch

    def _end(self, is_done: bool) -> None:
        with self._lock:
            if is_done and not self._is_over:
                self._offset += self._committing
                del self._values[: self._committing]
            self._committing = 0
