"""From a batch to the line that keeps it, once the fence let it through."""

from __future__ import annotations

from msgspec import UNSET

from milecastle.errors import Conflict
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.jsonl.index import Index
from milecastle.stores.jsonl.shapes import (
    CommitShape,
    FailureShape,
    RecordShape,
    ResultShape,
    RunShape,
    checkpoint_of,
    manifest_shape,
)
from milecastle.stores.jsonl.times import to_moment

__all__ = ["check_fence", "commit_of", "conflict", "shape_of"]


def check_fence(batch: Batch, index: Index) -> None:
    """Raise ``Conflict`` unless the batch's entries come right above the head."""
    head = index.head
    if batch.head != head:
        raise conflict(batch.key, batch.head + 1, head)
    if batch.head_id is not None and not index.is_head(batch.head_id):
        raise conflict(batch.key, head + 1, head)
    expected = head
    for entry in batch.entries:
        expected += 1
        if entry.seq != expected:
            raise conflict(batch.key, entry.seq, head)


def conflict(key: ThreadKey, expected: int, head: int) -> Conflict:
    """The error for who comes too late."""
    return Conflict(tenant=key.tenant, thread=key.thread, expected=expected, head=head)


def shape_of(batch: Batch, index: Index) -> CommitShape | None:
    """The line of a batch; ``None`` if there is nothing to write.

    A manifest that the log has is not written again.
    """
    entries = batch.entries
    if entries:
        first = entries[0]
        commit = CommitShape(UNSET, first.seq, to_moment(first.created_at), checkpoint_of(first))
        if len(entries) > 1:
            commit.also = tuple(map(RecordShape.of, entries[1:]))
    else:
        commit = CommitShape(head=batch.head)
    if batch.results or batch.runs or batch.failure or batch.manifest:
        _add_facts(commit, batch, index)
    return commit if entries or commit != CommitShape(head=batch.head) else None


def _add_facts(commit: CommitShape, batch: Batch, index: Index) -> None:
    commit.results = tuple(map(ResultShape.of, batch.results))
    commit.runs = tuple(map(RunShape.of, batch.runs))
    if batch.failure is not None:
        commit.failures = (FailureShape.of(batch.failure),)
    if batch.manifest is not None and batch.manifest[0] not in index.manifests:
        commit.manifests = {batch.manifest[0]: manifest_shape(batch.manifest[1])}


def commit_of(first: RecordShape, *also: RecordShape) -> CommitShape:
    """The line of these checkpoints."""
    return CommitShape(
        seq=first.seq, created_at=first.created_at, checkpoint=first.checkpoint, also=also
    )
