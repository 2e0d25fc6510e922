"""The records of file runs: begun, ended, failed, died, refused, or never loaded.

A run that did not end well has exactly one failure record, written before its own record says so.
One whose process died gets its failure from the next process that holds its thread.

The class of a failure says whether a run can be resumed. The graph is wrong or cannot be loaded:
``graph``. Files or records of the workspace are invalid: ``workspace``. A node failed:
``execution``. Anything else, a death among them: ``system``.
"""

from __future__ import annotations

import platform
from collections.abc import Generator
from contextlib import contextmanager, suppress
from time import time_ns
from typing import Any

import msgspec.structs

from milecastle.builds.workspace import Workspace
from milecastle.engine.failing import describe
from milecastle.errors import (
    Corrupted,
    DefinitionError,
    ExecutionError,
    FormatTooNew,
    RunCancelled,
    RunError,
    Unavailable,
)
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RESUMABLE, Failure, FailureClass, Mode, RunRecord
from milecastle.version import __version__


def class_of(error: BaseException) -> FailureClass:
    """The class of what ended a run."""
    cause = error.cause if isinstance(error, ExecutionError) else error
    if isinstance(cause, Corrupted | FormatTooNew):
        return "workspace"
    if isinstance(cause, DefinitionError):
        return "graph"
    if isinstance(error, RunError):
        return "execution"
    return "system"


def describe_failure(
    error: BaseException,
    record: RunRecord,
    *,
    time: int,
    failure_class: FailureClass | None = None,
) -> Failure:
    """The failure record of a run that ``error`` ended."""
    found = failure_class or class_of(error)
    node = getattr(error, "node", None)
    described = describe(error, run_id=record.run_id, node=node, time=time)
    return msgspec.structs.replace(
        described,
        failure_class=found,
        resumable=RESUMABLE[found],
        attempt=record.retry_count + 1,
    )


def describe_death(record: RunRecord, *, time: int) -> Failure:
    """The failure record of a run whose process ended abruptly."""
    return Failure(
        run_id=record.run_id,
        failure_class="system",
        resumable=True,
        error_type="ProcessDied",
        message="the process of the run ended abruptly: it was killed, or the machine stopped",
        traceback=(),
        causes=(),
        attempt=record.retry_count + 1,
        time=time,
    )


def new_record(
    workspace: Workspace, key: ThreadKey, graph: str, mode: Mode, **more: Any
) -> RunRecord:
    """The record of a run that begins now."""
    facts: dict[str, Any] = {"fingerprint": "", "retry_count": 0, "previous_run_id": None}
    return RunRecord(
        run_id=workspace.new_run_id(),
        key=key,
        graph=graph,
        mode=mode,
        status="running",
        started_at=_now(),
        metadata={
            "milecastle": __version__,
            "python": platform.python_version(),
            "host": platform.node(),
        },
        **(facts | more),
    )


@contextmanager
def recording(workspace: Workspace, record: RunRecord) -> Generator[None]:
    """Write down how the run inside ended."""
    try:
        yield
    except BaseException as error:
        _fail(workspace, record, error, None)
        raise
    workspace.write_run(msgspec.structs.replace(record, status="completed", ended_at=_now()))


def record_unloadable(
    workspace: Workspace, key: ThreadKey, mode: Mode, error: BaseException
) -> RunRecord:
    """Record a run whose graph could not be loaded: its failure is of class ``graph``."""
    record = new_record(workspace, key, key.thread, mode)
    _fail(workspace.recorder(), record, error, "graph")
    return record


def record_refused(workspace: Workspace, record: RunRecord, error: BaseException) -> None:
    """Record a run that the workspace is not fit for: its failure is of class ``workspace``."""
    with suppress(OSError):  # not even that can be written, and the error says why
        _fail(workspace.recorder(), record, error, "workspace")


def bury(workspace: Workspace, key: ThreadKey) -> None:
    """Give every run of the thread that died a failure record. The thread must be held."""
    for record in list(workspace.runs([])):
        is_ours = record.key == key and workspace.has_plan(record.run_id)
        if not is_ours or record.status != "running":
            continue
        try:
            failure = workspace.failure(record.run_id)
        except (Corrupted, FormatTooNew):
            continue  # the plan reports it; nothing is written over it
        if failure is None:
            workspace.write_failure(key, describe_death(record, time=_now()))
        workspace.write_run(msgspec.structs.replace(record, status="failed", ended_at=_now()))


def bury_if_free(workspace: Workspace, key: ThreadKey) -> None:
    """``bury``, unless a run of the thread is at work."""
    if not workspace.path.is_dir():
        return
    try:
        with workspace.holding(key, wait=0):
            bury(workspace, key)
    except Unavailable:
        return


def _fail(
    workspace: Workspace,
    record: RunRecord,
    error: BaseException,
    failure_class: FailureClass | None,
) -> None:
    failure = describe_failure(error, record, time=_now(), failure_class=failure_class)
    workspace.write_failure(record.key, failure)
    status = "cancelled" if isinstance(error, RunCancelled) else "failed"
    workspace.write_run(msgspec.structs.replace(record, status=status, ended_at=_now()))


def _now() -> int:
    return time_ns() // 1000
