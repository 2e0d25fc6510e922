"""A run: one attempt to drive a thread, and the table of what may become of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from milecastle.model.keys import ThreadKey

__all__ = ["TRANSITIONS", "Mode", "RunRecord", "RunStatus", "ThreadInfo", "may_become"]

RunStatus = Literal[
    "running", "interrupted", "sleeping", "completed", "failed", "cancelled", "superseded"
]
Mode = Literal["clean", "incremental", "resume-only"]

TRANSITIONS: Mapping[RunStatus, tuple[RunStatus, ...]] = MappingProxyType(
    {
        "running": ("interrupted", "sleeping", "completed", "failed", "cancelled", "superseded"),
        "interrupted": ("running", "superseded"),
        "sleeping": ("running", "superseded"),
        "completed": (),
        "failed": (),
        "cancelled": (),
        "superseded": (),
    }
)
"""What a run's status may become. A run that ended never changes again: going on is a new run."""


def may_become(old: RunStatus, new: RunStatus) -> bool:
    """Whether a run may go from ``old`` to ``new``; staying as it is is always legal."""
    return old == new or new in TRANSITIONS[old]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run. ``previous_run_id`` is always there, ``None`` when there is none.

    ``metadata`` holds the library's version, Python's, the host and, when there is one, the
    git commit. ``input_digest`` tells whether a call repeats the input of this run. ``wake_at``
    is when a sleeping run may go on, in microseconds since 1970.
    """

    run_id: str
    key: ThreadKey
    graph: str
    fingerprint: str
    mode: Mode
    status: RunStatus
    retry_count: int
    previous_run_id: str | None
    started_at: int
    ended_at: int | None = None
    input_digest: str = ""
    metadata: dict[str, str] = {}
    wake_at: int | None = None


class ThreadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A line in the list of threads: the thread and what its newest run came to."""

    key: ThreadKey
    status: RunStatus
    run_id: str
    graph: str
    started_at: int
    ended_at: int | None

    @classmethod
    def of(cls, run: RunRecord) -> ThreadInfo:
        """The line of a thread whose newest run this is."""
        return cls(
            key=run.key,
            status=run.status,
            run_id=run.run_id,
            graph=run.graph,
            started_at=run.started_at,
            ended_at=run.ended_at,
        )
