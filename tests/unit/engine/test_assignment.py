"""What the line of a thread tells workers, and when a run is retried."""

from __future__ import annotations

from milecastle.engine.assignment import Assignment
from milecastle.errors import ExecutionError
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import Retry
from milecastle.model.run import RunRecord

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
