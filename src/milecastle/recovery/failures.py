"""What class a failure is of, and so whether a run can be resumed after it.

The graph is wrong or cannot be loaded: ``graph``. Files or records of the workspace are not fit:
``workspace``. A node failed: ``execution``. Anything else, a death among them: ``system``.
"""

from __future__ import annotations

import msgspec.structs

from milecastle.engine.failing import describe
from milecastle.errors import (
    Corrupted,
    DefinitionError,
    ExecutionError,
    FormatTooNew,
    RunError,
)
from milecastle.model.failure import RESUMABLE, Failure, FailureClass
from milecastle.model.run import RunRecord

__all__ = ["class_of", "describe_death", "describe_failure"]


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
    """The failure record of a run whose process ended without a word."""
    return Failure(
        run_id=record.run_id,
        failure_class="system",
        resumable=True,
        error_type="ProcessDied",
        message="the process of the run ended without a word: killed, or the machine stopped",
        traceback=(),
        causes=(),
        attempt=record.retry_count + 1,
        time=time,
    )
