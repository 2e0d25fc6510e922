"""Records of the store as lines: for JSON documents, and as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from milecastle.cli.documents import CheckpointLine, FailureLine, RunLine, ThreadLine
from milecastle.cli.printing import moment, print_lines, styled_status
from milecastle.cli.values import as_json, plain
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.failure import Failure
from milecastle.model.run import RunRecord, ThreadInfo

__all__ = [
    "checkpoint_line",
    "names",
    "print_facts",
    "print_failure",
    "print_state",
    "run_line",
    "run_row",
    "seconds",
    "thread_line",
]


def checkpoint_line(known: CheckpointMetadata) -> CheckpointLine:
    """A checkpoint without its state."""
    return CheckpointLine(
        seq=known.seq,
        id=known.id,
        parent_id=known.parent_id,
        step=known.step,
        source=known.source,
        nodes=known.nodes,
        next=known.next,
        run_id=known.run_id,
        fingerprint=known.fingerprint,
        timestamp=moment(known.timestamp),
        note=known.note,
    )


def thread_line(info: ThreadInfo) -> ThreadLine:
    """A thread and its newest run."""
    return ThreadLine(
        thread=info.key.thread,
        status=info.status,
        graph=info.graph,
        run_id=info.run_id,
        started_at=moment(info.started_at),
        ended_at=moment(info.ended_at),
    )


def run_line(run: RunRecord, failure: Failure | None) -> RunLine:
    """The record of a run."""
    return RunLine(
        thread=run.key.thread,
        run_id=run.run_id,
        graph=run.graph,
        fingerprint=run.fingerprint,
        mode=run.mode,
        status=run.status,
        retry_count=run.retry_count,
        previous_run_id=run.previous_run_id,
        started_at=moment(run.started_at),
        ended_at=moment(run.ended_at),
        metadata=run.metadata,
        failure=_failure_line(failure) if failure else None,
    )


def _failure_line(failure: Failure) -> FailureLine:
    return FailureLine(
        failure_class=failure.failure_class,
        resumable=failure.resumable,
        node=failure.node,
        error_type=failure.error_type,
        message=failure.message,
        traceback=failure.traceback,
        causes=failure.causes,
        attempt=failure.attempt,
        time=moment(failure.time),
    )


def run_row(line: RunLine) -> list[str]:
    """A run as a row: thread, run, status, graph, retry, start, end, what failed."""
    failure = line.failure
    why = f"{failure.error_type} at {failure.node or '-'}" if failure else ""
    return [
        line.thread,
        line.run_id,
        styled_status(line.status),
        line.graph or "-",
        str(line.retry_count),
        seconds(line.started_at),
        seconds(line.ended_at),
        why,
    ]


def seconds(time: str | None) -> str:
    """A time as people read it: to the second."""
    return f"{time[:19].replace('T', ' ')}Z" if time else "-"


def names(found: Sequence[str]) -> str:
    """Names of nodes in a cell."""
    return ", ".join(found) or "-"


def print_facts(facts: Mapping[str, str]) -> None:
    """Print pairs, one a line, in two columns."""
    width = max(map(len, facts), default=0)
    print_lines(f"{name:<{width}}  {value}".rstrip() for name, value in facts.items())


def print_state(values: Any) -> None:
    """Print a state, one channel a line, values as JSON."""
    found = plain(values)
    if not isinstance(found, dict):
        print_lines([as_json(found)])
        return
    channels = cast("dict[str, Any]", found)
    print_facts({f"  {name}": as_json(value) for name, value in channels.items()})


def print_failure(failure: FailureLine) -> None:
    """Print why a run did not end well."""
    place = f"node {failure.node}" if failure.node else "no node"
    again = "resumable" if failure.resumable else "not resumable"
    print_lines([f"failure  {failure.failure_class}, {again}, {place}, attempt {failure.attempt}"])
    print_lines([f"  {failure.error_type}: {failure.message}"])
    print_lines(f"  {line}" for part in failure.traceback for line in part.splitlines())
    print_lines(f"  caused by {cause}" for cause in failure.causes)
