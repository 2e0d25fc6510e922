"""Reading one thread's log: entries, chains, pages, results, runs. The log was refreshed before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from milecastle.model.checkpoint import SNAPSHOT, Entry, TaskResult
from milecastle.model.failure import Failure
from milecastle.model.run import RunRecord
from milecastle.stores.jsonl.index import Span
from milecastle.stores.jsonl.log import Log
from milecastle.stores.jsonl.shapes import (
    CommitShape,
    RecordShape,
    ResultShape,
    entry_of,
    manifest_of,
    result_of,
)

__all__ = [
    "chain_of",
    "each_record",
    "each_result",
    "entries_of",
    "entry_at",
    "failure_of",
    "manifest_at",
    "page_of",
    "results_of",
    "run_of",
]

T = TypeVar("T")


def entry_at(log: Log, seq: int, *, with_payload: bool = True) -> Entry | None:
    """The entry ``seq``, or ``None``."""

    def take(commit: CommitShape) -> Entry:
        record = next(record for record in commit.records() if record.seq == seq)
        return entry_of(record, with_payload=with_payload)

    span = log.index.at(seq)
    return None if span is None else log.read(span, take)


def chain_of(log: Log, entry: Entry) -> tuple[Entry, ...]:
    """What rebuilds ``entry``: back to the newest snapshot, past what rollups repeat."""
    found = [entry]
    seqs = [
        *range(entry.seq - 1, entry.roll_seq, -1),
        *log.index.cuts_between(entry.base_seq, min(entry.roll_seq, entry.seq - 1)),
    ]
    for seq in seqs:
        if found[-1].kind == SNAPSHOT:
            break
        before = entry_at(log, seq)
        if before is not None:
            found.append(before)
    return tuple(reversed(found))


def each_record(log: Log, first: int, last: int, make: Callable[[RecordShape], T]) -> Iterator[T]:
    """What ``make`` makes of the records ``first`` to ``last``; each line is read once."""

    def take(commit: CommitShape) -> list[T]:
        return [make(record) for record in commit.records() if first <= record.seq <= last]

    while (span := log.index.at(first)) is not None and first <= last:
        made = log.read(span, take)
        yield from made
        first += len(made)


def entries_of(log: Log, after: int, limit: int | None) -> list[Entry]:
    """Up to ``limit`` entries above ``after``, oldest first."""
    first, last = max(after + 1, log.index.first), log.index.head
    if limit is not None:
        last = min(last, first + limit - 1)
    return list(each_record(log, first, last, entry_of))


def each_result(log: Log, make: Callable[[ResultShape], T]) -> Iterator[T]:
    """What ``make`` makes of the results that the head has; each line is read once."""
    wanted: dict[Span, list[str]] = {}
    for task, span in log.index.results.items():
        wanted.setdefault(span, []).append(task)
    for span, tasks in wanted.items():

        def take(commit: CommitShape, tasks: list[str] = tasks) -> list[T]:
            shapes = {shape.task: shape for shape in commit.results}
            return [make(shapes[task]) for task in tasks]

        yield from log.read(span, take)


def results_of(log: Log) -> tuple[TaskResult, ...]:
    """The results that the head has."""
    return tuple(each_result(log, result_of))


def page_of(log: Log, limit: int, before: int | None) -> Iterator[Entry]:
    """Up to ``limit`` entries below ``before``, newest first, without payloads."""
    index = log.index
    last = index.head if before is None else min(before - 1, index.head)
    for seq in range(last, max(index.first - 1, last - limit), -1):
        entry = entry_at(log, seq, with_payload=False)
        if entry is not None:
            yield entry


def run_of(log: Log, run_id: str) -> RunRecord | None:
    """The newest record of a run, or ``None``."""

    def take(commit: CommitShape) -> RunRecord:
        shape = next(run for run in reversed(commit.runs) if run.run_id == run_id)
        return shape.record(log.key)

    found = log.index.runs.get(run_id)
    return None if found is None else log.read(found[1], take)


def failure_of(log: Log, run_id: str) -> Failure | None:
    """The failure of a run, or ``None``."""

    def take(commit: CommitShape) -> Failure:
        return next(each for each in commit.failures if each.run_id == run_id).failure()

    span = log.index.failures.get(run_id)
    return None if span is None else log.read(span, take)


def manifest_at(log: Log, fingerprint: str) -> bytes | None:
    """A manifest, or ``None``."""
    span = log.index.manifests.get(fingerprint)
    if span is None:
        return None
    return log.read(span, lambda commit: manifest_of(commit.manifests[fingerprint]))
