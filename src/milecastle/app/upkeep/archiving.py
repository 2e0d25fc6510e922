"""Archiving: moves a thread's old checkpoints to object storage, and back.

Rules:

- Nothing is deleted: archived checkpoints are read, forked and compared like others.
- A thread that has completed is archived up to its head. Its head must be a snapshot for that, so
  one checkpoint with the same state and time is appended if it is not (note ``archived``): a
  process that still has the old head is refused.
- Any other thread keeps what its head is built from: a writer may need it for a rollup.
- Age decides what is archived, and never which of two checkpoints is newer.
"""

from __future__ import annotations

from functools import partial

import msgspec.structs

from milecastle.app.threads.pruning import snapshots_for
from milecastle.codec.deltas import LogCodec
from milecastle.engine.journal import Journal
from milecastle.engine.position import restore
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.archive import Archive
from milecastle.ports.clock import Clock
from milecastle.ports.fencing import pruned_meanwhile
from milecastle.ports.store import Store

ARCHIVED = "archived"
"""Note of the checkpoint that is appended to a completed thread."""


def require_archive(store: Store) -> Archive:
    if store.archive is None:
        raise InvalidRequest(
            "archiving needs object storage: open the store with objects=, or set "
            "MILECASTLE_OBJECTS for the command line"
        )
    return store.archive


def archive_thread(
    store: Store, codec: LogCodec, clock: Clock, key: ThreadKey, *, before: int, over: str
) -> int:
    """Archive checkpoints created before a time; return how many.

    ``over``: the id of the head at which the thread had completed, and waited for nothing. It is
    archived up to that if it is old enough, and still the head.

    Raises:
        Conflict: it was written to meanwhile.
    """
    archive = require_archive(store)
    head, oldest = store.head(key), archive.oldest(key)
    if head is None or oldest is None or oldest.seq == head.seq:
        return 0
    whole = _is_whole(head, before, over)
    if whole and head.roll_seq != head.seq:
        head = _closed(store, codec, clock, key, head)
    cut = _cut(store, key, head, oldest.seq, before, whole=whole)
    rewritten = partial(snapshots_for, store, codec.for_thread(key), key)
    moved = 0
    while step := archive.put(key, head=head.seq, cut=cut, rewritten=rewritten, is_over=whole):
        moved += step
    return moved


def count_archivable(store: Store, key: ThreadKey, *, before: int, over: str) -> int:
    """How many checkpoints ``archive_thread`` would archive."""
    head, oldest = store.head(key), require_archive(store).oldest(key)
    if head is None or oldest is None:
        return 0
    whole = _is_whole(head, before, over)
    return max(0, _cut(store, key, head, oldest.seq, before, whole=whole) - oldest.seq)


def _is_whole(head: Entry, before: int, over: str) -> bool:
    return head.id == over and bool(head.fingerprint) and head.created_at < before


def _cut(
    store: Store, key: ThreadKey, head: Entry, oldest: int, before: int, *, whole: bool
) -> int:
    return head.seq if whole else min(head.roll_seq, _first_since(store, key, before, oldest))


def restore_thread(store: Store, key: ThreadKey) -> int:
    """Move a thread's archived checkpoints back into the store; return how many."""
    archive, head = require_archive(store), store.head(key)
    return archive.restore(key, head=head.seq) if head else 0


def _first_since(store: Store, key: ThreadKey, time: int, oldest: int) -> int:
    """Seq of the oldest checkpoint that stays: those from it on are the newest since ``time``."""
    first = oldest
    for entry in store.history(key):
        if entry.seq < oldest:
            break
        if entry.created_at < time:
            first = entry.seq + 1
            break
    return first


def _closed(store: Store, codec: LogCodec, clock: Clock, key: ThreadKey, head: Entry) -> Entry:
    """Append the snapshot of a completed thread; return it without its payload."""
    opened = store.open(key)
    if opened is None or opened.record is None or opened.chain.entries[-1].id != head.id:
        raise pruned_meanwhile(key, head.seq)
    codec = codec.for_thread(key)
    position = restore(opened.chain, codec)
    journal = Journal(
        record=msgspec.structs.replace(opened.record, fingerprint=head.fingerprint),
        codec=codec,
        clock=_At(clock, head.created_at),
        position=position,
        head=head.seq,
        announced=False,
    )
    journal.restart()
    batch = journal.append(position, "takeover", ARCHIVED)
    store.commit(batch)
    return msgspec.structs.replace(batch.entries[0], payload=b"")


class _At:
    """A clock whose time is that of a checkpoint: a copy of it is as old as it is."""

    def __init__(self, clock: Clock, time: int) -> None:
        self.monotonic, self.new_id = clock.monotonic, clock.new_id
        self._time = time

    def now(self) -> int:
        return self._time
