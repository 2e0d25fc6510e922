"""From a batch to the line that keeps it, once the fence let it through."""

from __future__ import annotations

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
    manifest_shape,
)

__all__ = ["check_fence", "commit_of", "conflict", "shape_of"]


def check_fence(batch: Batch, head: int) -> None:
    """Raise ``Conflict`` unless the batch's entries come right above ``head``."""
    if batch.head != head:
        raise conflict(batch.key, batch.head + 1, head)
    for seq, entry in enumerate(batch.entries, head + 1):
        if entry.seq != seq:
            raise conflict(batch.key, entry.seq, head)


def conflict(key: ThreadKey, expected: int, head: int) -> Conflict:
    """The error for who comes too late."""
    return Conflict(tenant=key.tenant, thread=key.thread, expected=expected, head=head)


def shape_of(batch: Batch, index: Index) -> CommitShape | None:
    """The line of a batch; ``None`` if there is nothing to write.

    A manifest that the log has is not written again.
    """
    if batch.entries:
        first, *also = map(RecordShape.of, batch.entries)
        commit = commit_of(first, *also)
    else:
        commit = CommitShape(head=batch.head)
    if batch.results:
        commit.results = tuple(map(ResultShape.of, batch.results))
    if batch.runs:
        commit.runs = tuple(map(RunShape.of, batch.runs))
    if batch.failure is not None:
        commit.failures = (FailureShape.of(batch.failure),)
    if batch.manifest is not None and batch.manifest[0] not in index.manifests:
        commit.manifests = {batch.manifest[0]: manifest_shape(batch.manifest[1])}
    elif not (batch.entries or batch.results or batch.runs or batch.failure):
        return None
    return commit


def commit_of(first: RecordShape, *also: RecordShape) -> CommitShape:
    """The line of these checkpoints."""
    return CommitShape(
        seq=first.seq, created_at=first.created_at, checkpoint=first.checkpoint, also=also
    )
