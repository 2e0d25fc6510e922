"""A run whose graph cannot be loaded is recorded all the same, if thread and store are known."""

from __future__ import annotations

from contextlib import suppress

from milecastle.app.clock import SystemClock
from milecastle.app.environment import describe_environment
from milecastle.cli.places import path_of
from milecastle.cli.printing import say
from milecastle.cli.session import Session
from milecastle.errors import MilecastleError
from milecastle.model.run import Mode, RunRecord
from milecastle.ports.store import Batch
from milecastle.recovery.failures import describe_failure

__all__ = ["record_unloadable"]


def record_unloadable(session: Session, thread: str, mode: Mode, error: BaseException) -> None:
    """Leave a record of class ``graph``. Nothing of the thread's log is touched."""
    found = session.url()
    path = path_of(found.value) if found else None
    if found is None or (path is not None and not path.parent.is_dir()):
        return
    with suppress(MilecastleError):
        store = session.open(found.value)
        key = session.key(thread)
        newest = next(iter(store.runs(key, limit=1)), None)
        head = next(iter(store.history(key, limit=1)), None)
        clock = SystemClock()
        now = clock.now()
        record = RunRecord(
            run_id=clock.new_id(),
            key=key,
            graph="",
            fingerprint="",
            mode=mode,
            status="failed",
            retry_count=0,
            previous_run_id=newest.run_id if newest else None,
            started_at=now,
            ended_at=now,
            metadata=describe_environment(),
        )
        failure = describe_failure(
            error.__cause__ or error, record, time=now, failure_class="graph"
        )
        seq = head.seq if head else 0
        store.commit(Batch(key=key, head=seq, runs=(record,), failure=failure))
        say(f"recorded as run {record.run_id} of thread '{thread}'")
