"""Workers and lanes, as a store reports them."""

from __future__ import annotations

import msgspec

from milecastle.model.run import Owner
from milecastle.support.prepared import prepared

SILENT = 15.0
"""After how many seconds without a heartbeat a worker is considered gone, unless told otherwise."""


@prepared
class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as its heartbeat describes it.

    ``capacity`` is how many threads it runs in parallel at most. ``running`` is how many it has
    claimed, and ``silent`` for how many seconds it has not called ``beat``: both are the store's
    to say. It is gone if it was silent for more than ``silent_after`` seconds. ``databases``: where
    it beats, if the store has several; it serves the threads there, and no others.
    """

    id: str
    owner: Owner
    lanes: tuple[str, ...]
    started_at: int
    capacity: int = 1
    draining: bool = False
    running: int = 0
    silent: float = 0.0
    silent_after: float = SILENT
    databases: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """True if it was silent for longer than allowed."""
        return self.silent > self.silent_after


class LaneDepth(msgspec.Struct, frozen=True, kw_only=True):
    """One lane's depth for one tenant.

    ``due`` threads wait for a worker, the oldest of them for ``oldest`` seconds; ``later`` have a
    time that has not come; ``running`` have a worker.
    """

    lane: str
    tenant: str
    due: int
    later: int
    running: int
    oldest: float
