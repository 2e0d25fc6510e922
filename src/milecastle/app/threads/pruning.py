"""Pruning a thread: deletes the oldest checkpoints; the rest stays readable.

At the cut, a snapshot replaces the entries it was built from. The cut is never past

- the head's last rollup, because an active run depends on it;
- the checkpoint from which the next input starts if the run is or will be cancelled;
- entries another library rebuilds its state from.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import msgspec.structs

from milecastle.app.threads.closing import before_input
from milecastle.codec.deltas import LogCodec
from milecastle.engine.position import restore
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import ROLLUP, SNAPSHOT, Entry
from milecastle.model.hosting import NEEDED
from milecastle.model.keys import ThreadKey
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.fencing import pruned_meanwhile
from milecastle.ports.store import Store


def prune_thread(store: Store, codec: LogCodec, key: ThreadKey, *, keep_last: int) -> int:
    """Delete the oldest checkpoints, keeping at least ``keep_last``; return how many were deleted.

    A few more than requested may stay, up to a rollup's length.
    """
    if keep_last < 1:
        raise InvalidRequest(f"keep_last must be at least 1, not {keep_last}")
    chain = store.read(key)  # not only its head: nothing is deleted from a damaged thread
    if chain is None:
        return 0
    head = chain.entries[-1]
    codec = codec.for_thread(key)
    cut = find_cut(store, codec, head, key, keep_last)
    kept = _from(store, key, cut)
    if cut <= 1 or not kept or kept[0].seq > cut:  # none if it was deleted since
        return 0
    rewritten = [_as_snapshot(store, codec, key, entry) for entry in _resting_below(kept)]
    return store.prune(key, head=head.seq, cut=cut, rewritten=rewritten)


def snapshots_for(store: Store, codec: LogCodec, key: ThreadKey, cut: int) -> list[Entry]:
    """Snapshots ``Store.prune`` needs if the entries below a cut go."""
    kept = _from(store, key, cut)
    if not kept or kept[0].seq > cut:
        raise pruned_meanwhile(key, cut)
    return [_as_snapshot(store, codec, key, entry) for entry in _resting_below(kept)]


def _from(store: Store, key: ThreadKey, cut: int) -> list[Entry]:
    newest_first = store.history(key)
    return [*takewhile(lambda entry: entry.seq >= cut, newest_first)][::-1]


def find_cut(store: Store, codec: LogCodec, head: Entry, key: ThreadKey, keep_last: int) -> int:
    """Oldest seq that stays: entries a live writer may still roll up are never cut."""
    needed = _next_start(store, key, head) if head.fingerprint else _needed(store, codec, key)
    cut = min(head.seq - keep_last + 1, head.roll_seq)
    return cut if needed is None else min(cut, needed)


def _next_start(store: Store, key: ThreadKey, head: Entry) -> int | None:
    """The seq from which the next input starts if this run ends by being cancelled.

    1 if the run is that of the first input: the entry of that input says so.
    """
    info = store.thread(key)
    if info is None or not (head.next or head.route):
        return None
    if info.status != "cancelled" and not waiting_inputs(store, key, 1):
        return None
    try:
        base = before_input(store, key, head)
    except InvalidRequest:  # it was cut before inputs waited
        return None
    return base.entries[-1].seq if base else 1


def _needed(store: Store, codec: LogCodec, key: ThreadKey) -> int | None:
    """The oldest seq another library's graph needs; such a graph has no fingerprint.

    0 if that checkpoint is not found: then nothing is cut.
    """
    chain = store.read_state(key)
    id = restore(chain, codec).reserved.get(NEEDED) if chain else None
    return None if id is None else store.locate(key, id) or 0


def _resting_below(kept: list[Entry]) -> Iterator[Entry]:
    first = kept[0]
    if first.kind == SNAPSHOT:
        return
    yield first
    if first.kind == ROLLUP:
        return
    for entry in kept[1:]:
        if entry.kind == SNAPSHOT:
            return
        if entry.kind == ROLLUP:
            yield entry
            return


def _as_snapshot(store: Store, codec: LogCodec, key: ThreadKey, entry: Entry) -> Entry:
    chain = store.read(key, entry.seq)
    if chain is None:
        raise InvalidRequest(f"thread '{key.thread}' changed while it was being pruned: try again")
    found = restore(chain, codec)
    body = codec.encode_state(found.contents)
    snapshot = msgspec.structs.replace(
        chain.entries[-1], kind=SNAPSHOT, base_seq=entry.seq, roll_seq=entry.seq
    )
    return msgspec.structs.replace(snapshot, payload=codec.seal_entry(body, snapshot))
