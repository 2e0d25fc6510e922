"""A run's assignment to a fleet: its thread's index row for the workers.

Rules:

- Whatever makes a run necessary is written by the commit making it so: an input
  submitted, an answer, the end of a sleep, a retry, the release by a worker stopping.
- While a worker runs a thread, the line names it. Every line ending a segment names no worker.
- A run nobody can continue has no time: it waits for an answer, failed for good, or ended.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import msgspec.structs

from milecastle.errors import ExecutionError, RunError
from milecastle.model.policies import Retry
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo

NOW = 0
"""As ``due_at``: the time of the commit, by the clock of the store."""

LOST = "its worker was lost"
"""The note of an entry by which a worker takes over from one that was lost."""


def _never() -> bool:
    return False


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Which workers may run a thread, and which one does.

    ``lane`` names the graph and its fingerprint. ``worker`` is the one running it now; without one,
    the run is handed over when it is opened, to be started at ``due_at``. ``priority`` puts it
    before its tenant's other threads, for all segments. ``retry`` says which failures of the run
    are retried. ``is_draining`` says the worker is about to stop: the run is released with the
    commit of its next step. ``is_lost`` says another one has the thread by now: this run records
    nothing any more. ``is_retaken`` says the worker before this one was lost with the thread: an
    entry with the note ``LOST`` says so before a node runs.
    """

    lane: str
    worker: str = ""
    due_at: int = NOW
    priority: int = 0
    retry: Retry | None = None
    is_retaken: bool = False
    is_draining: Callable[[], bool] = _never
    is_lost: Callable[[], bool] = _never

    def line(self, info: ThreadInfo, retry_at: int | None) -> ThreadInfo:
        times: dict[RunStatus, int | None] = {
            "queued": self.due_at,
            "running": NOW,
            "interrupted": info.wake_at,
            "sleeping": info.wake_at,
            "failed": retry_at,
        }
        return msgspec.structs.replace(
            info,
            lane=self.lane,
            due_at=times.get(info.status),
            worker=self.worker if info.status == "running" else "",
            priority=self.priority,
        )

    def retry_at(self, error: BaseException, record: RunRecord, now: int) -> int | None:
        retry, attempt = self.retry, record.retry_count + 1
        cause = error.cause if isinstance(error, ExecutionError) else error
        if retry is None or attempt >= retry.attempts or not isinstance(error, RunError):
            return None
        if not isinstance(cause, retry.errors):
            return None
        return retry.next_at(now, attempt, record.run_id)


def kept_in_lane(info: ThreadInfo, known: ThreadInfo) -> ThreadInfo:
    """Index row after a user's write: it still sleeps, or waits for its retry."""
    due_at = known.due_at if info.status == "failed" else info.wake_at
    return msgspec.structs.replace(info, lane=known.lane, due_at=due_at, priority=known.priority)
