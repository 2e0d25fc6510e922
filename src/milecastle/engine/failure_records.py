"""Failure records: types, places and messages. Never state values, never locals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec.structs

from milecastle.errors import CodecError, ExecutionError, RunError, message_of
from milecastle.model.run import (
    FAILED_NODE,
    FAILED_TYPE,
    RESUMABLE,
    Failure,
    FailureClass,
    RunRecord,
    TaskFailure,
)

_MESSAGE: Final = 300
"""How many characters of the message of each of several failed tasks are stored."""


def describe(
    error: BaseException,
    *,
    run_id: str,
    node: str | None,
    time: int,
    attempt: int = 1,
    tasks: tuple[TaskFailure, ...] = (),
) -> Failure:
    cause = error.cause if isinstance(error, ExecutionError) else error
    hint = error.hint if isinstance(error, ExecutionError) else ""
    is_execution = isinstance(error, RunError | CodecError)
    failure_class: FailureClass = "execution" if is_execution else "system"
    return Failure(
        run_id=run_id,
        failure_class=failure_class,
        resumable=RESUMABLE[failure_class],
        error_type=type(cause).__qualname__,
        message=_storable(message_of(cause) + (f" ({hint})" if hint else "")),
        traceback=tuple(_frames(cause)),
        causes=tuple(
            _storable(f"{type(link).__qualname__}: {message_of(link)}") for link in _chain(cause)
        ),
        attempt=attempt,
        time=time,
        node=node,
        tasks=tasks,
    )


def with_cause(record: RunRecord, failure: Failure | None) -> RunRecord:
    if failure is None:
        return record
    cause = {FAILED_TYPE: failure.error_type}
    if failure.node is not None:
        cause[FAILED_NODE] = failure.node
    return msgspec.structs.replace(record, metadata=record.metadata | cause)


def describe_task(task: str, node: str, error: BaseException, attempt: int) -> TaskFailure:
    cause = error.cause if isinstance(error, ExecutionError) else error
    return TaskFailure(
        task=task,
        node=node,
        error_type=type(cause).__qualname__,
        message=_storable(message_of(cause))[:_MESSAGE],
        attempt=attempt,
    )


def describe_superseded(run_id: str, *, node: str | None, time: int, attempt: int = 1) -> Failure:
    """Failure record for a run without a recorded end, written by its successor."""
    return Failure(
        run_id=run_id,
        failure_class="system",
        resumable=RESUMABLE["system"],
        error_type="Superseded",
        message="the run did not end: its process died, or another took its thread",
        traceback=(),
        causes=(),
        attempt=attempt,
        time=time,
        node=node,
    )


def describe_lost(run_id: str, *, node: str | None, time: int, count: int) -> Failure:
    """Failure record for a run held because every worker running it was lost."""
    return Failure(
        run_id=run_id,
        failure_class="system",
        resumable=RESUMABLE["system"],
        error_type="WorkersLost",
        message=f"{count} workers in a row were lost while they ran this step: it may end its "
        "process, or need more memory than there is",
        traceback=(),
        causes=(),
        attempt=count,
        time=time,
        node=node,
    )


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _frames(error: BaseException) -> Iterator[str]:
    import traceback

    for frame, line in traceback.walk_tb(error.__traceback__):  # reads no files
        yield f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    link = error.__cause__ or error.__context__
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
