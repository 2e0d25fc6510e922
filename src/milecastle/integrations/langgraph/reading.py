"""A log's checkpoints for LangGraph: the newest, one by id, or all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec.structs
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol

from milecastle.codec import envelope
from milecastle.errors import InvalidRequest
from milecastle.integrations.langgraph.log import (
    NOTE,
    STRAY,
    Log,
    LogState,
    TaskWrite,
    owner_of,
    resolve,
    take_stray,
)
from milecastle.integrations.langgraph.naming import config_of
from milecastle.integrations.langgraph.packing import ChannelParts, apply, unpack
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store

_PAGE: Final = 200
_STRETCH: Final = 16


def refuse_foreign(store: Store, key: ThreadKey) -> None:
    """Raise ``InvalidRequest`` for a thread no saver has written, such as a graph's."""
    head = store.head(key)
    run = store.run(key, head.run_id) if head else None
    if run is not None and (run.fingerprint or not run.graph):
        raise InvalidRequest(f"thread '{key.thread}' is not one of LangGraph: use another")


def read_log(store: Store, key: ThreadKey) -> Log:
    chain = store.read(key)
    if chain is None:
        return Log(key=key)
    return Log.read(key, chain.entries)


def with_run(store: Store, log: Log) -> Log:
    if not log.seq or log.run is not None:
        return log
    return msgspec.structs.replace(log, run=store.run(log.key, log.run_id))


def read_newest(store: Store, key: ThreadKey, known: Log | None) -> Log:
    if known is not None:
        head = store.head(key)
        if head is not None and (head.seq, head.id) == (known.seq, known.id):
            return known
    return read_log(store, key)


def read_checkpoint(
    store: Store, key: ThreadKey, checkpoint: str, known: Log | None = None
) -> LogState | None:
    """The state at a checkpoint, with all its writes; ``None`` if it is not stored."""
    seq = store.locate(key, checkpoint)
    chain = None if seq is None else store.read(key, seq)
    if seq is None or chain is None:
        newest = read_newest(store, key, known).state  # its own entry may be pruned
        return newest if newest.record is not None and newest.record.id == checkpoint else None
    parts, _ = restored(chain.entries)
    state = LogState.of(_noted(store, key, seq, checkpoint, parts))
    if state.record is None or state.record.id != checkpoint:
        return None
    late = read_newest(store, key, known).state.late
    writes = _late(store, key, [id for target, id in late if target == checkpoint])
    return msgspec.structs.replace(state, writes=(*state.writes, *writes))


def _noted(
    store: Store, key: ThreadKey, seq: int, checkpoint: str, parts: ChannelParts
) -> ChannelParts:
    found, owner = dict(parts), checkpoint
    while page := store.entries(key, after=seq, limit=_STRETCH):
        for entry in page:
            if entry.note != NOTE:
                return found
            parts = {} if entry.kind == SNAPSHOT else parts
            apply(parts, envelope.unseal(entry.payload))
            owner = owner_of(entry, parts, owner)
            if owner == checkpoint:
                found = dict(parts)
        seq = page[-1].seq
    return found


def _late(store: Store, key: ThreadKey, ids: Sequence[str]) -> Iterator[TaskWrite]:
    for id in ids:
        seq = store.locate(key, id)
        for entry in () if seq is None else store.entries(key, after=seq - 1, limit=1):
            parts: ChannelParts = {}
            apply(parts, envelope.unseal(entry.payload))
            stray = take_stray(parts)
            yield from stray[1] if stray else ()


def walk(
    store: Store, key: ThreadKey, before: int | None = None
) -> Iterator[tuple[Entry, LogState]]:
    """A log's checkpoints, newest first, with writes; from below a seq if given."""
    late: dict[str, list[TaskWrite]] = {}
    newest = read_log(store, key).state
    listed = newest.late
    ids = {id for _, id in listed}
    is_part = before is not None
    while page := _page(store, key, before):
        for entry, state in reversed(_replayed(store, key, page, ids, late)):
            id = state.record.id if state.record else ""
            if newest.record is not None and newest.record.id == id:
                if entry.id == id or store.locate(key, id) is None:  # its own entry may be pruned
                    yield msgspec.structs.replace(entry, id=id), newest
            elif entry.id == id:
                more = late.get(id, [])
                if is_part:
                    more = [*_late(store, key, [one for target, one in listed if target == id])]
                yield entry, msgspec.structs.replace(state, writes=(*state.writes, *more))
        before = page[0].seq


def _page(store: Store, key: ThreadKey, before: int | None) -> list[Entry]:
    found: list[Entry] = []
    for entry in store.history(key, before=before):
        found.append(entry)
        if len(found) >= _PAGE and entry.note != NOTE:
            break
    return found[::-1]


def _replayed(
    store: Store, key: ThreadKey, page: list[Entry], ids: set[str], late: dict[str, list[TaskWrite]]
) -> list[tuple[Entry, LogState]]:
    """A page's checkpoints with their states, oldest first.

    Late writes in entries with these ids are collected.
    """
    first = page[0]
    chain = store.read(key, first.seq)
    if chain is None:
        return []
    parts, cut = restored(chain.entries)
    owner = owner_of(first, parts, "")
    strays: dict[str, list[TaskWrite]] = {}
    found: dict[str, tuple[Entry, ChannelParts]] = {owner: (first, dict(parts))}
    for entry in store.entries(key, after=first.seq, limit=len(page) - 1):
        if entry.kind != DELTA:
            parts = dict(cut) if entry.kind == ROLLUP else {}
        apply(parts, envelope.unseal(entry.payload))
        if entry.kind != DELTA:
            cut = dict(parts)
        stray = take_stray(parts)
        if stray and entry.id in ids:
            strays.setdefault(stray[0], []).extend(stray[1])
        owner = owner_of(entry, parts, owner)
        if entry.note != NOTE:
            found[owner] = entry, dict(parts)
        elif owner in found or entry.kind == SNAPSHOT:
            found[owner] = found.get(owner, (entry,))[0], dict(parts)
    for target, writes in strays.items():  # pages come newest first
        late[target] = [*writes, *late.get(target, [])]
    return [(entry, LogState.of(at)) for entry, at in found.values()]


def delta_history(
    store: Store,
    serde: SerializerProtocol,
    key: ThreadKey,
    checkpoint: str | None,
    channels: Sequence[str],
) -> dict[str, DeltaChannelHistory] | None:
    """Each channel's nearest stored value above a checkpoint, and the writes since.

    One walk down the log, because an ancestor is below its descendants; ``None`` if one is not.
    """
    found: dict[str, DeltaChannelHistory] = {name: {"writes": []} for name in channels}
    left = set(channels)
    seq = None if checkpoint is None else store.locate(key, checkpoint)
    wanted, is_ancestor = checkpoint, False
    for _, state in walk(store, key, None if seq is None else seq + 1):
        record = state.record
        if record is None or wanted not in (None, record.id):
            continue
        for write in reversed(resolve(state.writes)) if is_ancestor else ():
            if write.channel in left:
                value = serde.loads_typed((write.form, write.body))
                found[write.channel]["writes"].insert(0, (write.task, write.channel, value))
        for name in left & state.channels.keys() if is_ancestor else ():
            found[name]["seed"] = unpack(serde, state.channels[name])
            left.remove(name)
        wanted, is_ancestor = record.parent, True
        if wanted is None or not left:
            return found
    return None


def restored(entries: Sequence[Entry]) -> tuple[ChannelParts, ChannelParts]:
    parts: ChannelParts = {}
    cut: ChannelParts = {}
    for entry in entries:
        if entry.kind == SNAPSHOT:
            parts = {}
        parts.pop(STRAY, None)  # of the entry before
        apply(parts, envelope.unseal(entry.payload))
        if entry.kind != DELTA:
            cut = dict(parts)
    return parts, cut


def metadata_of(serde: SerializerProtocol, state: LogState) -> dict[str, Any]:
    assert state.record is not None  # noqa: S101 - a checkpoint has one
    found: dict[str, Any] = serde.loads_typed(state.record.metadata)
    return found


def as_tuple(serde: SerializerProtocol, key: ThreadKey, state: LogState) -> CheckpointTuple | None:
    record = state.record
    if record is None:
        return None
    checkpoint = serde.loads_typed(record.checkpoint)
    checkpoint["channel_values"] = {
        name: unpack(serde, packed) for name, packed in state.channels.items()
    }
    return CheckpointTuple(
        config=config_of(key, record.id, record.namespace),
        checkpoint=checkpoint,
        metadata=serde.loads_typed(record.metadata),
        parent_config=(config_of(key, record.parent, record.namespace) if record.parent else None),
        pending_writes=[
            (one.task, one.channel, serde.loads_typed((one.form, one.body)))
            for one in resolve(state.writes)
        ],
    )


def matches(metadata: Any, wanted: Any) -> bool:
    """True if one JSON document contains another: objects by key, lists item by item.

    Numbers are compared by value; a truth value is not a number.
    """
    if isinstance(wanted, dict):
        names = cast("Mapping[Any, Any]", wanted)
        return isinstance(metadata, dict) and all(
            name in metadata and matches(metadata[name], value) for name, value in names.items()
        )
    if isinstance(wanted, list | tuple):
        ones, items = cast("Sequence[Any]", wanted), cast("Sequence[Any]", metadata)
        return isinstance(metadata, list | tuple) and all(
            any(matches(item, one) for item in items) for one in ones
        )
    is_truth = isinstance(metadata, bool)
    return is_truth is isinstance(wanted, bool) and bool(metadata == wanted)
