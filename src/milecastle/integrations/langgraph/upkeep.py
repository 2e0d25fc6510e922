from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec.structs

from milecastle.codec import envelope
from milecastle.errors import Conflict, InvalidRequest
from milecastle.integrations.langgraph.log import CHECKPOINT, NOTE, encode, owner_of, take_stray
from milecastle.integrations.langgraph.packing import ChannelParts, apply, whole, write_body
from milecastle.integrations.langgraph.reading import read_log, restored, walk, with_run
from milecastle.integrations.langgraph.writing import snapshot
from milecastle.model.checkpoint import ROLLUP, SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.reducers import SET
from milecastle.ports.store import Batch, Store

T = TypeVar("T")

_ATTEMPTS: Final = 100


def copy_log(store: Store, source: ThreadKey, target: ThreadKey) -> None:
    entries = store.entries(source)
    if not entries:
        return
    if store.head(target) is not None:
        raise InvalidRequest(f"thread '{target.thread}' exists: copy to a new one")
    line = store.thread(source)
    runs = reversed(store.runs(source))
    batch = Batch(
        key=target,
        head=0,
        entries=tuple(_renumbered(entries)),
        runs=tuple(msgspec.structs.replace(run, key=target) for run in runs),
        thread=msgspec.structs.replace(line, key=target) if line else None,
    )
    store.commit(batch)


def _renumbered(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The same entries from seq 1 on; pruned ones are no longer counted."""
    base = roll = 1
    for seq, entry in enumerate(entries, 1):
        base = seq if entry.kind == SNAPSHOT else base
        roll = seq if entry.kind in (SNAPSHOT, ROLLUP) else roll
        yield msgspec.structs.replace(entry, seq=seq, base_seq=base, roll_seq=roll)


def keep_latest(store: Store, key: ThreadKey) -> None:
    """Drop every checkpoint but the newest, and those its delta channels need."""
    _until_won(lambda: _keep_latest(store, key))


def _until_won(work: Callable[[], T]) -> T:
    """Repeat work on a log until no concurrent write interferes."""
    for _ in range(_ATTEMPTS):
        with suppress(Conflict):
            return work()
    return work()


def _keep_latest(store: Store, key: ThreadKey) -> None:
    log = with_run(store, read_log(store, key))
    record, needed = log.state.record, log.state.needed
    cut = store.locate(key, needed or record.id) if record else None
    if cut is None or not any(True for _ in store.history(key, before=cut, limit=1)):
        return
    batch, after = snapshot(log, log.state, log.next, log.run)
    store.commit(batch)
    first, *others = store.entries(key, after=cut - 1)
    rewritten = [_as_snapshot(store, key, first)] if first.kind != SNAPSHOT else []
    if first.kind not in (SNAPSHOT, ROLLUP):
        rewritten += _next_rollup(store, key, others)
    store.prune(key, head=after.seq, cut=cut, rewritten=rewritten)


def delete_runs(store: Store, key: ThreadKey, runs: set[str]) -> bool:
    return _until_won(lambda: _delete_runs(store, key, runs))


def _delete_runs(store: Store, key: ThreadKey, runs: set[str]) -> bool:
    """First make the newest remaining checkpoint the head, then empty the others.

    An interrupted call can be repeated.
    """
    log = with_run(store, read_log(store, key))
    found = list(walk(store, key))
    doomed = {entry.id for entry, _ in found if entry.run_id in runs}
    if not doomed:
        return False
    kept = [(entry, state) for entry, state in found if entry.id not in doomed]
    if not kept:
        return store.delete(key, head=log.seq, head_id=log.id)
    newest, state = kept[0]  # with all its writes, the late ones too
    gone = {newest.id, *doomed}
    late = tuple(one for one in log.state.late if one[0] not in gone)
    state = msgspec.structs.replace(state, late=late)
    batch, after = snapshot(log, state, newest.next, store.run(key, newest.run_id))
    store.commit(batch)
    entries = store.entries(key)
    ids = {id for _, id in log.state.late}
    rewritten = {entry.seq: entry for entry in _emptied(store, key, entries, doomed, ids)}
    store.prune(key, head=after.seq, cut=entries[0].seq, rewritten=list(rewritten.values()))
    return True


def _emptied(
    store: Store, key: ThreadKey, entries: Sequence[Entry], doomed: set[str], late: set[str]
) -> Iterator[Entry]:
    """The doomed entries without contents; their successors stored whole.

    Only the entries listed as ``late`` have late writes: pruning repeats older ones.
    """
    owner = ""
    was_doomed = False
    for at, entry in enumerate(entries):
        parts: ChannelParts = {}
        apply(parts, envelope.unseal(entry.payload))
        owner = owner_of(entry, parts, owner)
        stray = take_stray(parts) if entry.id in late else None
        if (stray[0] if stray else owner) in doomed:
            was_doomed = True
            yield _snapshot_of(entry, write_body([(SET, CHECKPOINT, encode(None))]), NOTE)
        elif was_doomed:
            was_doomed = False
            if entry.kind != SNAPSHOT:
                yield _as_snapshot(store, key, entry)
            if entry.kind not in (SNAPSHOT, ROLLUP):
                yield from _next_rollup(store, key, entries[at + 1 :])


def _next_rollup(store: Store, key: ThreadKey, entries: Sequence[Entry]) -> Iterator[Entry]:
    for entry in entries:
        if entry.kind == SNAPSHOT:
            return
        if entry.kind == ROLLUP:
            yield _as_snapshot(store, key, entry)
            return


def _as_snapshot(store: Store, key: ThreadKey, entry: Entry) -> Entry:
    chain = store.read(key, entry.seq)
    if chain is None:
        raise InvalidRequest(f"thread '{key.thread}' changed meanwhile: try again")
    parts, _ = restored(chain.entries)
    return _snapshot_of(chain.entries[-1], whole(parts), entry.note)


def _snapshot_of(entry: Entry, body: bytes, note: str) -> Entry:
    return msgspec.structs.replace(
        entry,
        kind=SNAPSHOT,
        base_seq=entry.seq,
        roll_seq=entry.seq,
        payload=envelope.seal(body),
        note=note,
    )
