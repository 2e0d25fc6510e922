"""What the line of a thread tells workers, and when a run is retried."""

from __future__ import annotations

import msgspec
import pytest

from milecastle.engine.assignment import NOW as AT_ONCE
from milecastle.engine.assignment import Assignment, kept_in_lane
from milecastle.errors import ExecutionError
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import Retry
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo

NOW = 1_700_000_000_000_000


def a_record(run_id: str) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        key=ThreadKey("default", "t"),
        graph="g",
        fingerprint="f",
        mode="clean",
        status="running",
        retry_count=0,
        previous_run_id=None,
        started_at=NOW,
    )


def test_the_delay_of_a_retry_comes_from_its_run() -> None:
    """A repeated run waits as before, two runs differ. Fails if the delay is drawn anew."""
    assignment = Assignment(lane="g@f", retry=Retry(delay=10, jitter=0.5))
    error = ExecutionError("no", node="a", step=1, path=[], state={}, cause=ValueError("no"))
    times = [assignment.retry_at(error, a_record(id), NOW) for id in ("r1", "r1", "r2")]
    assert times[0] == times[1] != times[2]
    assert all(time is not None and NOW + 5_000_000 <= time <= NOW + 10_000_000 for time in times)


def a_line(status: RunStatus, **fields: object) -> ThreadInfo:
    info = ThreadInfo.of(a_record("r1"))
    return msgspec.structs.replace(info, status=status, **fields)


@pytest.mark.parametrize(
    ("status", "wake_at", "due_at", "worker"),
    [
        ("queued", None, 5, ""),
        ("running", None, AT_ONCE, "w"),
        ("interrupted", None, None, ""),
        ("interrupted", 7, 7, ""),
        ("sleeping", 7, 7, ""),
        ("failed", None, 9, ""),
        ("completed", None, None, ""),
    ],
)
def test_line_says_when_a_worker_must_look_at_the_thread(
    status: RunStatus, wake_at: int | None, due_at: int | None, worker: str
) -> None:
    """Fails if a status has the time of another, or a thread that rests has a worker."""
    assignment = Assignment(lane="g@f", worker="w", due_at=5, priority=3)
    line = assignment.line(a_line(status, wake_at=wake_at), 9)
    assert (line.lane, line.due_at, line.worker, line.priority) == ("g@f", due_at, worker, 3)


@pytest.mark.parametrize(("status", "due_at"), [("failed", 9), ("sleeping", 7)])
def test_thread_that_a_user_wrote_to_is_due_as_before(status: RunStatus, due_at: int) -> None:
    """Fails if the time of a retry is lost, or a sleeper is woken at that of one."""
    known = a_line(status, lane="g@f", due_at=9, priority=3)
    line = kept_in_lane(a_line(status, wake_at=7), known)
    assert (line.lane, line.due_at, line.priority) == ("g@f", due_at, 3)


def test_worker_neither_drains_nor_is_lost_unless_it_says_so() -> None:
    """Fails if a run is released, or records nothing, for no reason."""
    assignment = Assignment(lane="g@f")
    assert (assignment.is_draining(), assignment.is_lost()) == (False, False)
