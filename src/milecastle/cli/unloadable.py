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
        if thread or folder:
            name = thread or session.app_reference or ""
            _record_unloadable(session, name, folder, mode, error)
        raise


def _record_unloadable(
    session: Session, thread: str, folder: str | None, mode: Mode, error: BaseException
) -> None:
    if folder:
        with suppress(OSError):
            workspace = Workspace(folder, root=session.folder)
            cause = error.__cause__ or error
            record = record_unloadable(workspace, session.key(thread), mode, cause)
            say(f"recorded as run {record.run_id} of thread '{thread}'")
        return
    _record_in_store(session, thread, mode, error)


def _record_in_store(session: Session, thread: str, mode: Mode, error: BaseException) -> None:
    """The thread's log and status do not change.

    Only a thread without a log gets the status of its last run.
    """
    found = session.url()
    path = path_of(found.value) if found else None
    if found is None or (path is not None and not path.parent.is_dir()):
        return
    with suppress(MilecastleError):
        store = session.open(found.value)
        record = commit_unloadable(store, session.key(thread), mode, error, SystemClock())
        say(f"recorded as run {record.run_id} of thread '{thread}'")


def commit_unloadable(
    store: Store, key: ThreadKey, mode: Mode, error: BaseException, clock: Clock
) -> RunRecord:
    """Commit a run record for a graph that could not be loaded because of ``error``."""
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
