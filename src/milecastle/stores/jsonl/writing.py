"""Writing: a batch as the line that stores it, and logs written again without pruned entries.

A pruned log's first line says where it begins; runs, failures, manifests and the thread's line
come next, then the checkpoints that stay, one in a line, then the results the head still has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec.structs
from msgspec import UNSET

from milecastle.model.checkpoint import Entry
from milecastle.model.run import ThreadInfo
from milecastle.ports.fencing import conflict, input_known, message_gone
from milecastle.ports.mailbox import with_unread
from milecastle.ports.store import Batch
from milecastle.stores.jsonl.index import Index, Span
from milecastle.stores.jsonl.log import LogFile, new_log_id
from milecastle.stores.jsonl.reading import each_record, each_result, messages_in
from milecastle.stores.jsonl.shapes import (
    FORMAT,
    CommitShape,
    EntryShape,
    FailureShape,
    HeaderShape,
    MessageShape,
    ResultShape,
    RunShape,
    ThreadShape,
    checkpoint_of,
    manifest_shape,
    to_moment,
)


def check_fence(batch: Batch, index: Index) -> None:
    head = index.head
    if batch.head != head:
        raise conflict(batch.key, batch.head + 1, head)
    if batch.head_id is not None and not index.is_head(batch.head_id):
        raise conflict(batch.key, head + 1, head)
    if batch.unless is not None and batch.unless in index.digests:
        raise input_known(batch.key, head)
    expected = head
    for entry in batch.entries:
        expected += 1
        if entry.seq != expected:
            raise conflict(batch.key, entry.seq, head)
    unread = index.messages.unread
    if batch.consumes and not all(number in unread for number in batch.consumes):
        raise message_gone(batch.key, head)


def with_message(batch: Batch, index: Index) -> Batch:
    if batch.thread is None or index.thread is None or not index.messages.unread:
        return batch
    is_unread = partial(index.messages.is_unread, besides=batch.consumes)
    row = with_unread(batch.thread, index.thread.lane, is_unread)
    return msgspec.structs.replace(batch, thread=row)


def shape_of(batch: Batch, index: Index) -> CommitShape | None:
    """A batch's line; ``None`` if there is nothing to write.

    A manifest the log has is not written again.
    """
    entries = batch.entries
    if entries:
        first = entries[0]
        commit = CommitShape(UNSET, first.seq, to_moment(first.created_at), checkpoint_of(first))
        if len(entries) > 1:
            commit.also = tuple(map(EntryShape.of, entries[1:]))
    else:
        commit = CommitShape(head=batch.head)
        if batch.tags is not None and index.thread is not None:
            commit.thread = msgspec.structs.replace(index.thread, tags=_tags(batch, index))
    if batch.results or batch.runs or batch.failure or batch.manifest or batch.thread:
        _add_facts(commit, batch, index)
    if batch.consumes:
        commit.consumes = tuple(dict.fromkeys(batch.consumes))
    return commit if entries or commit != CommitShape(head=batch.head) else None


def _add_facts(commit: CommitShape, batch: Batch, index: Index) -> None:
    commit.results = tuple(map(ResultShape.of, batch.results))
    commit.runs = tuple(map(RunShape.of, batch.runs))
    if batch.failure is not None:
        commit.failures = (FailureShape.of(batch.failure),)
    if batch.manifest is not None and batch.manifest[0] not in index.manifests:
        commit.manifests = {batch.manifest[0]: manifest_shape(batch.manifest[1])}
    if batch.thread is not None:
        commit.thread = ThreadShape.of(batch.thread, _tags(batch, index))
    elif index.thread is None and batch.runs:
        commit.thread = ThreadShape.of(ThreadInfo.of(batch.runs[-1]), _tags(batch, index))


def _tags(batch: Batch, index: Index) -> tuple[str, ...]:
    tags = () if index.thread is None else index.thread.tags
    return tags if batch.tags is None else batch.tags.applied(tags)


def commit_of(first: EntryShape, *also: EntryShape) -> CommitShape:
    return CommitShape(
        seq=first.seq, created_at=first.created_at, checkpoint=first.checkpoint, also=also
    )


def put_back(log: LogFile, header: HeaderShape, entries: Sequence[Entry]) -> None:
    """Rewrite the locked log with entries below its oldest one, which the last replaces."""
    last = entries[-1]
    begun = msgspec.structs.replace(header, first_seq=entries[0].seq)
    log.replace(begun, _kept(log, last.seq, {last.seq: last}, 0, entries[:-1]))


def drop_below(
    log: LogFile, header: HeaderShape, cut: int, changed: Mapping[int, Entry], marks_below: int
) -> None:
    begun = msgspec.structs.replace(header, first_seq=cut)
    log.replace(begun, _kept(log, cut, changed, marks_below))


def _kept(
    log: LogFile,
    cut: int,
    changed: Mapping[int, Entry],
    marks_below: int,
    earlier: Sequence[Entry] = (),
) -> Iterator[CommitShape]:
    index = log.index
    facts = CommitShape(
        head=0,
        runs=tuple(
            next(run for run in reversed(commit.runs) if run.run_id == id)
            for id, commit in _commits_at(log, index.runs)
        ),
        failures=tuple(
            next(failure for failure in commit.failures if failure.run_id == id)
            for id, commit in _commits_at(log, index.failures)
        ),
        manifests={
            name: commit.manifests[name] for name, commit in _commits_at(log, index.manifests)
        },
        thread=index.thread,
    )
    if facts.runs or facts.failures or facts.manifests or facts.thread:
        yield facts
    for archived in earlier:
        yield commit_of(EntryShape.of(archived))
    for record in each_record(log, cut, index.head, lambda record: record):
        entry = changed.get(record.seq)
        yield commit_of(record if entry is None else EntryShape.of(entry))
    results = tuple(each_result(log, lambda result: result))
    if results:
        yield CommitShape(head=index.head, results=results)
    for span in dict.fromkeys(index.sent.values()):
        messages = messages_in(log, span)
        yield CommitShape(head=index.head, messages=tuple(map(MessageShape.of, messages)))
    if index.messages.last:
        marks = index.messages.pruned(marks_below).marks()
        yield CommitShape(head=index.head, consumed=marks.consumed, last_message=marks.last)


def _commits_at(log: LogFile, spans: Mapping[str, Span]) -> Iterator[tuple[str, CommitShape]]:
    return ((name, log.read(span, lambda commit: commit)) for name, span in spans.items())


def drop_all(log: LogFile, header: HeaderShape, *, now: int) -> None:
    """Write a tombstone: an empty log's header, which refuses the old log's writers."""
    log.replace(
        HeaderShape(
            format=FORMAT,
            tenant=header.tenant,
            thread=header.thread,
            log=new_log_id(),
            generation=header.generation + 1,
            deleted_at=to_moment(now),
        ),
        (),
    )
