"""UUIDv7: ids for external use. Order within a thread is ``seq``, never an id or a clock.

Within one millisecond a generator counts up from a random start, as RFC 9562 allows: cheap,
and ids of one process are ordered.
"""

from __future__ import annotations

import os
from itertools import count
from time import time_ns

from milecastle.support.forking import watch_forks

_BYTES = 10
"""Random bytes of a start. They are drawn for many: in a system call other threads get a turn."""


class IdMaker:
    """Generates UUIDv7s in their usual hyphenated form. Thread-safe; a forked child starts over."""

    def __init__(self) -> None:
        self.after_fork(in_child=True)
        watch_forks(self)

    def before_fork(self) -> None: ...

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._current = (-1, "", count())
            self._drawn: list[bytes] = []

    def make(self) -> str:
        now = time_ns() // 1_000_000
        moment, prefix, numbers = self._current
        if now != moment:
            try:
                drawn = self._drawn.pop()
            except IndexError:
                drawn = self._draw()
            random = int.from_bytes(drawn)
            middle, variant = random & 0xFFF, 0x8000 | (random >> 12) & 0x3FFF
            prefix = (
                f"{now >> 16 & 0xFFFF_FFFF:08x}-{now & 0xFFFF:04x}-7{middle:03x}-{variant:04x}-"
            )
            numbers = count((random >> 26) & 0x7FFF_FFFF_FFFF)
            self._current = now, prefix, numbers
        return f"{prefix}{next(numbers):012x}"

    def _draw(self) -> bytes:
        many = os.urandom(64 * _BYTES)
        self._drawn += [many[at : at + _BYTES] for at in range(_BYTES, len(many), _BYTES)]
        return many[:_BYTES]
