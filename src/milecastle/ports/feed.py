"""A feed: emitted values for readers in other processes.

Rules that every feed follows:

1. It is lossy. A payload may be lost, never doubled, and one publisher's arrive in order.
   A reader compares numbers, and finds gaps: see ``app/emitting.py``.
2. ``publish`` never waits and never raises: a node emitting is as fast without a server.
3. It stores nothing. A subscriber receives payloads published after ``subscribe`` has returned.
4. It does not look into payloads, which may be encrypted. An empty one is the notice a run may
   have stopped; several for one thread may arrive as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from milecastle.model.keys import ThreadKey


class Feed(Protocol):
    """Carries payloads from the process running a thread to its followers."""

    def publish(self, key: ThreadKey, payload: bytes, /) -> None:
        """Offer a payload to a thread's followers; from any thread."""
        ...

    def subscribe(self, key: ThreadKey, heard: Callable[[bytes], None], /) -> Callable[[], None]:
        """Call ``heard``, from any thread, with each payload; returns a function ending this.

        ``heard`` returns quickly and raises nothing.
        """
        ...

    def subscribe_soon(
        self, key: ThreadKey, heard: Callable[[bytes], None], /
    ) -> Callable[[], None]:
        """``subscribe`` without waiting: an empty payload tells when listening has begun."""
        ...
