"""Following a thread: its checkpoints from a seq on, and then those that are still to come.

Who follows needs nothing of the process that runs the thread: the log is the stream.
"""

from __future__ import annotations

from typing import Any

from milecastle.app.threads import Threads
from milecastle.codec.deltas import LogCodec, replay
from milecastle.engine.hidden import split
from milecastle.model.checkpoint import DELTA, Entry
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey

__all__ = ["Follower"]

_PAGE = 100


class Follower:
    """Reads a thread's log as events of the type ``state``, each with its seq."""

    def __init__(self, threads: Threads, key: ThreadKey, after: int) -> None:
        self._threads = threads
        self._key = key
        self._after = after
        self._values: dict[str, Any] | None = None
        self._codec: LogCodec | None = None

    def look(self) -> tuple[bool, list[Event]]:
        """Whether the thread was at rest, and what was appended since the last look."""
        return self._is_at_rest(), self._page()

    def _page(self) -> list[Event]:
        found = self._threads.store.entries(self._key, after=self._after, limit=_PAGE)
        return [self._event(entry) for entry in found]

    def _is_at_rest(self) -> bool:
        """Nothing more comes unless somebody goes on with it."""
        newest = next(self._threads.store.history(self._key, limit=1), None)
        if newest is None:
            return True
        if newest.seq > self._after:
            return False
        run = self._threads.store.run(self._key, newest.run_id)
        return run is None or run.status != "running"

    def _event(self, entry: Entry) -> Event:
        follows = entry.seq == self._after + 1
        self._after = entry.seq
        threads = self._threads
        if self._values is None or entry.kind != DELTA or not follows:
            self._values = threads.existing(self._key, entry.seq)[0].values
        else:
            if self._codec is None:
                self._codec = threads.codec.for_thread(self._key)
            codec = self._codec
            body = codec.unseal(entry.payload, entry.seq, entry.kind)
            self._values = replay(_copied(self._values), codec.decode(body))
            split(self._values)
        return Event(
            type="state",
            run_id=entry.run_id,
            key=self._key,
            step=entry.step,
            seq=entry.seq,
            state=threads.graph.schema.present(self._values),
            data={"nodes": entry.nodes, "next": entry.next, "source": entry.source},
        )


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """Values that ``replay`` may change in place, though who reads the events holds the others."""
    return {
        name: value.copy() if isinstance(value, list | dict | set) else value
        for name, value in values.items()
    }
