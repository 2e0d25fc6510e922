"""Records a run whose graph cannot be loaded, in the workspace or the store.

It belongs to the given thread. Without one, a workspace has it under the reference, and a store
does not have it: a mistyped name must not become a thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from milecastle.app.application import App
from milecastle.app.clock import SystemClock
from milecastle.app.environment import describe_environment
from milecastle.builds.file_run import describe_failure, record_unloadable
from milecastle.builds.workspace import Workspace
from milecastle.cli.loading import LoadError
from milecastle.cli.printing import say
from milecastle.cli.session import Session, path_of
from milecastle.errors import DefinitionError, MilecastleError
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Mode, RunRecord, ThreadInfo
from milecastle.ports.clock import Clock
from milecastle.ports.store import Batch, Store


def load_or_record(
    session: Session, thread: str | None, *, folder: str | None = None, mode: Mode = "incremental"
) -> App[Any]:
    try:
        return session.app()
    except (LoadError, DefinitionError) as error:
        record: RunRecord | None = None
        if folder:
            with suppress(OSError):
                key = session.key(thread or session.app_reference or "")
                workspace = Workspace(folder, root=session.folder)
                record = record_unloadable(workspace, key, mode, error.__cause__ or error)
        elif thread:
            record = _record_in_store(session, thread, mode, error)
        if record is not None:
            say(f"recorded as run {record.run_id} of thread '{record.key.thread}'")
        raise


def _record_in_store(
    session: Session, thread: str, mode: Mode, error: BaseException
) -> RunRecord | None:
    """The thread's log and status do not change.

    Only a thread without a log gets the status of its last run.
    """
    found = session.url()
    path = path_of(found.value) if found else None
    if found is None or (path is not None and not path.parent.is_dir()):
        return None
    with suppress(MilecastleError):
        store, key = session.open(found.value), session.key(thread)
        return commit_unloadable(store, key, mode, error, SystemClock())
    return None


def commit_unloadable(
    store: Store, key: ThreadKey, mode: Mode, error: BaseException, clock: Clock
) -> RunRecord:
    newest = next(iter(store.runs(key, limit=1)), None)
    head = store.head(key)
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
    failure = describe_failure(error.__cause__ or error, record, time=now, failure_class="graph")
    seq, info = head.seq if head else 0, None if head else ThreadInfo.of(record)
    store.commit(Batch(key=key, head=seq, runs=(record,), failure=failure, thread=info))
    return record
