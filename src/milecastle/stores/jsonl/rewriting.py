"""Logs written anew: without what was pruned, or without anything.

The first line of a pruned log says where it begins; runs, failures and manifests come next, then
the checkpoints that stay, one in a line, then the results that the head still has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec.structs
from msgspec import Raw

from milecastle.model.checkpoint import Entry
from milecastle.stores.jsonl.batches import commit_of
from milecastle.stores.jsonl.log import Log, new_log_id
from milecastle.stores.jsonl.reading import each_record, each_result
from milecastle.stores.jsonl.shapes import (
    CommitShape,
    FailureShape,
    HeaderShape,
    RecordShape,
    RunShape,
)
from milecastle.stores.jsonl.times import to_moment

__all__ = ["drop_all", "drop_below"]


def drop_below(log: Log, header: HeaderShape, cut: int, changed: Mapping[int, Entry]) -> None:
    """Write the log anew from ``cut`` on, with some of its entries changed; its lock is held."""
    begun = msgspec.structs.replace(header, first_seq=cut)
    log.replace(begun, _kept(log, cut, changed))


def _kept(log: Log, cut: int, changed: Mapping[int, Entry]) -> Iterator[CommitShape]:
    index = log.index
    facts = CommitShape(
        head=0,
        runs=tuple(_runs(log)),
        failures=tuple(_failures(log)),
        manifests=dict(_manifests(log)),
    )
    if facts.runs or facts.failures or facts.manifests:
        yield facts
    for record in each_record(log, cut, index.head, lambda record: record):
        entry = changed.get(record.seq)
        yield commit_of(record if entry is None else RecordShape.of(entry))
    results = tuple(each_result(log, lambda result: result))
    if results:
        yield CommitShape(head=index.head, results=results)


def _runs(log: Log) -> Iterator[RunShape]:
    for run_id, (_, span) in log.index.runs.items():
        commit = log.read(span, lambda commit: commit)
        yield next(run for run in reversed(commit.runs) if run.run_id == run_id)


def _failures(log: Log) -> Iterator[FailureShape]:
    for run_id, span in log.index.failures.items():
        commit = log.read(span, lambda commit: commit)
        yield next(failure for failure in commit.failures if failure.run_id == run_id)


def _manifests(log: Log) -> Iterator[tuple[str, Raw]]:
    for fingerprint, span in log.index.manifests.items():
        commit = log.read(span, lambda commit: commit)
        yield fingerprint, commit.manifests[fingerprint]


def drop_all(log: Log, header: HeaderShape, *, now: int) -> None:
    """Leave a tombstone: the header of an empty log, which no writer of the old one fits."""
    log.replace(
        HeaderShape(
            format=header.format,
            tenant=header.tenant,
            thread=header.thread,
            log=new_log_id(),
            generation=header.generation + 1,
            deleted_at=to_moment(now),
        ),
        (),
    )
