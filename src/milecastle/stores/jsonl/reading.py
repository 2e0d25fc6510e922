"""Read one thread's log: entries, chains, pages, results, runs. It was refreshed before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from milecastle.model.checkpoint import SNAPSHOT, Entry, TaskResult
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.ports.mailbox import StoredMessage
from milecastle.stores.jsonl.index import Span
from milecastle.stores.jsonl.log import LogFile
from milecastle.stores.jsonl.shapes import (
    CommitShape,
    EntryShape,
    ResultShape,
    entry_of,
    manifest_of,
    result_of,
)

T = TypeVar("T")


def entry_at(log: LogFile, seq: int, *, with_payload: bool = True) -> Entry | None:
    def take(commit: CommitShape) -> Entry:
        record = next(record for record in commit.records() if record.seq == seq)
        return entry_of(record, with_payload=with_payload)

    span = log.index.at(seq)
    return None if span is None else log.read(span, take)


def chain_of(log: LogFile, entry: Entry) -> tuple[Entry, ...]:
    """The entry's chain: back to the newest snapshot, skipping entries repeated by rollups."""
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


def each_record(
    log: LogFile, first: int, last: int, make: Callable[[EntryShape], T]
) -> Iterator[T]:
    def take(commit: CommitShape) -> list[T]:
        return [make(record) for record in commit.records() if first <= record.seq <= last]

    while (span := log.index.at(first)) is not None and first <= last:
        made = log.read(span, take)
        yield from made
        first += len(made)


def entries_of(log: LogFile, after: int, limit: int | None) -> list[Entry]:
    first, last = max(after + 1, log.index.first), log.index.head
    if limit is not None:
        last = min(last, first + limit - 1)
    return list(each_record(log, first, last, entry_of))


def each_result(log: LogFile, make: Callable[[ResultShape], T]) -> Iterator[T]:
    wanted: dict[Span, list[str]] = {}
    for task, span in log.index.results.items():
        wanted.setdefault(span, []).append(task)
    for span, tasks in wanted.items():

        def take(commit: CommitShape, tasks: list[str] = tasks) -> list[T]:
            shapes = {shape.task: shape for shape in commit.results}
            return [make(shapes[task]) for task in tasks]

        yield from log.read(span, take)


def results_of(log: LogFile) -> tuple[TaskResult, ...]:
    return tuple(each_result(log, result_of))


def page_of(log: LogFile, limit: int, before: int | None) -> Iterator[Entry]:
    index = log.index
    last = index.head if before is None else min(before - 1, index.head)
    for seq in range(last, max(index.first - 1, last - limit), -1):
        entry = entry_at(log, seq, with_payload=False)
        if entry is not None:
            yield entry


def run_of(log: LogFile, run_id: str) -> RunRecord | None:
    def take(commit: CommitShape) -> RunRecord:
        shape = next(run for run in reversed(commit.runs) if run.run_id == run_id)
        return shape.record(log.key)

    span = log.index.runs.get(run_id)
    return None if span is None else log.read(span, take)


def failure_of(log: LogFile, run_id: str) -> Failure | None:
    def take(commit: CommitShape) -> Failure:
        return next(each for each in commit.failures if each.run_id == run_id).failure()

    span = log.index.failures.get(run_id)
    return None if span is None else log.read(span, take)


def thread_of(log: LogFile) -> ThreadInfo | None:
    thread = log.index.thread
    return None if thread is None else thread.info(log.key)


def messages_in(log: LogFile, span: Span) -> list[StoredMessage]:
    def take(commit: CommitShape) -> list[StoredMessage]:
        sent = log.index.sent
        return [one.message() for one in commit.messages if sent.get(one.number) == span]

    return log.read(span, take)


def manifest_at(log: LogFile, fingerprint: str) -> bytes | None:
    span = log.index.manifests.get(fingerprint)
    if span is None:
        return None
    return log.read(span, lambda commit: manifest_of(commit.manifests[fingerprint]))
