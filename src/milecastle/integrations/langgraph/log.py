"""A LangGraph thread as a log: one log for each thread and namespace, one entry for each call.

- ``put`` appends the changed channels, and in ``__checkpoint__`` LangGraph's other data. The entry
  has the checkpoint's id. One continuing another than the newest is a fork: a snapshot, whose
  parent is the checkpoint it continues.
- ``put_writes`` appends to ``__writes__``, which a new checkpoint empties. Its entries have the
  note ``writes``.
- Writes for a checkpoint that is no longer the newest are in ``__stray__`` in their own entry, and
  nothing later repeats them; ``__late__`` lists those entries.
- Writes for an unstored checkpoint wait in memory and are stored with it. Without it they could not
  be read, and a late one does not create a deleted thread again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec
import msgspec.msgpack
import msgspec.structs

from milecastle.codec import envelope
from milecastle.engine.rollup_rule import ChainEnd
from milecastle.integrations.langgraph.packing import (
    ChannelParts,
    Operation,
    Packed,
    PackedForm,
    apply,
    fold,
    packed_of,
    set_to,
    write_body,
)
from milecastle.model.checkpoint import DELTA, SNAPSHOT, Entry, Source
from milecastle.model.hosting import HOSTED
from milecastle.model.keys import ThreadKey
from milecastle.model.reducers import APPEND, SET
from milecastle.model.run import RunRecord
from milecastle.support.prepared import prepared

CHECKPOINT, WRITES, LATE, STRAY, NEEDED = HOSTED

NOTE: Final = "writes"
"""The note of entries that are not checkpoints."""

encode = msgspec.msgpack.Encoder().encode


@prepared
class Record(msgspec.Struct, frozen=True, array_like=True):
    """LangGraph's data for a checkpoint besides its channels.

    ``forms`` has the channels with a value that is not plain data; ``absent`` those without one,
    though the log has an older value. ``namespace`` is there if it is long.
    """

    id: str
    parent: str | None
    forms: dict[str, PackedForm]
    absent: list[str]
    checkpoint: tuple[str, bytes]
    metadata: tuple[str, bytes]
    namespace: str = ""


@prepared
class TaskWrite(msgspec.Struct, frozen=True, array_like=True):
    """One value a task wrote. An ``upsert`` replaces the previous one at the same place."""

    path: str
    task: str
    index: int
    channel: str
    form: str
    body: bytes
    upsert: bool


_decode_record = msgspec.msgpack.Decoder(Record | None).decode
_decode_writes = msgspec.msgpack.Decoder(list[TaskWrite]).decode
_decode_late = msgspec.msgpack.Decoder(list[tuple[str, str]]).decode
_decode_needed = msgspec.msgpack.Decoder(str | None).decode
_decode_stray = msgspec.msgpack.Decoder(tuple[str, list[TaskWrite]]).decode


class LogState(msgspec.Struct, frozen=True):
    """A log's content at one of its entries; ``record`` is ``None`` where nothing is stored.

    ``late`` pairs a checkpoint with the entry holding its writes. ``needed`` is the
    ancestor that delta channels are rebuilt from; older ones may be pruned.
    """

    record: Record | None = None
    channels: dict[str, Packed] = {}
    writes: tuple[TaskWrite, ...] = ()
    late: tuple[tuple[str, str], ...] = ()
    needed: str | None = None

    @classmethod
    def of(cls, parts: ChannelParts) -> LogState:
        record = _decode_record(parts[CHECKPOINT][-1]) if CHECKPOINT in parts else None
        writes = tuple(one for part in parts.get(WRITES, ()) for one in _decode_writes(part))
        late = tuple(one for part in parts.get(LATE, ()) for one in _decode_late(part))
        channels: dict[str, Packed] = {}
        if record is not None:
            absent = {*record.absent, *HOSTED}
            channels = {
                name: packed_of(found, record.forms.get(name, ""))
                for name, found in parts.items()
                if name not in absent
            }
        needed = _decode_needed(parts[NEEDED][-1]) if NEEDED in parts else None
        return cls(record, channels, writes, late, needed)

    def operations(self) -> list[Operation]:
        found = [set_to(name, packed) for name, packed in self.channels.items()]
        found.append((SET, WRITES, encode(self.writes)))
        if self.late:
            found.append((SET, LATE, encode(self.late)))
        if self.needed:
            found.append((SET, NEEDED, encode(self.needed)))
        record = self.record
        if record is not None:
            record = msgspec.structs.replace(record, absent=[])
        found.append((SET, CHECKPOINT, encode(record)))
        return found


class Log(msgspec.Struct, frozen=True):
    key: ThreadKey
    state: LogState = LogState()
    seq: int = 0
    id: str | None = None
    chain: ChainEnd = msgspec.field(default_factory=ChainEnd)
    gone: frozenset[str] = frozenset()
    nodes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    step: int = 0
    run_id: str = ""
    run: RunRecord | None = None

    @classmethod
    def read(cls, key: ThreadKey, entries: Sequence[Entry]) -> Log:
        start = max(at for at, entry in enumerate(entries) if entry.kind == SNAPSHOT)
        entries = entries[start:]
        bodies = [envelope.unseal(entry.payload) for entry in entries]
        parts: ChannelParts = {}
        for body in bodies:
            apply(parts, body)
        head = entries[-1]
        state = LogState.of(parts)
        behind = sum(entry.seq <= head.roll_seq for entry in entries)
        size = sum(map(len, bodies))
        chain = ChainEnd.of(
            entries[0].seq, head.roll_seq, bodies[behind:], size, snapshot=len(bodies[0])
        )
        return cls(
            key=key,
            state=state,
            seq=head.seq,
            id=head.id,
            chain=chain,
            gone=frozenset(parts) - set(state.channels) - set(HOSTED),
            nodes=head.nodes,
            next=head.next,
            step=head.step,
            run_id=head.run_id,
        )


class Listing(msgspec.Struct, frozen=True):
    id: str
    parent: str | None
    source: Source
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    step: int
    run: RunRecord
    now: int
    note: str = ""


def append(
    log: Log,
    place: Listing,
    operations: Iterable[Operation],
    state: LogState,
    *,
    rollup_after: int | None,
    snapshot: bool = False,
) -> tuple[Entry, Log]:
    chain, seq = log.chain.copy(), log.seq + 1
    kind, body = chain.choose(
        None if snapshot or not log.seq else write_body(operations),
        lambda: write_body(state.operations()),
        lambda bodies: fold(bodies, STRAY),
        rollup_after=rollup_after,
        # Never at a note: what it says of another checkpoint is not part of the state.
        may_cut=not place.note,
    )
    if kind != DELTA:
        chain.cut(seq, kind, body)
    entry = Entry(
        seq,
        place.id,
        place.parent,
        place.step,
        place.source,
        place.nodes,
        place.next,
        place.run.run_id,
        "",
        place.now,
        kind,
        chain.base_seq,
        chain.roll_seq,
        envelope.seal(body),
        (),
        place.note,
    )
    gone = frozenset[str]() if kind == SNAPSHOT else log.gone | set(log.state.channels)
    return entry, Log(
        key=log.key,
        state=state,
        seq=seq,
        id=place.id,
        chain=chain,
        gone=gone - set(state.channels),
        nodes=place.nodes,
        next=place.next,
        step=place.step,
        run_id=place.run.run_id,
        run=place.run,
    )


def resolve(writes: Iterable[TaskWrite]) -> list[TaskWrite]:
    found: dict[tuple[str, int], TaskWrite] = {}
    for write in writes:
        place = write.task, write.index
        if write.upsert or place not in found:
            found[place] = write
    return sorted(found.values(), key=lambda one: (one.path, one.task, one.index))


def add_writes(
    log: Log, checkpoint: str, writes: Sequence[TaskWrite], id: str
) -> tuple[list[Operation], LogState]:
    state = log.state
    if state.record is not None and state.record.id == checkpoint:
        added = msgspec.structs.replace(state, writes=(*state.writes, *writes))
        return [(APPEND.code, WRITES, encode(writes))], added
    late = (checkpoint, id)
    stray = (SET, STRAY, encode((checkpoint, writes)))
    added = msgspec.structs.replace(state, late=(*state.late, late))
    return [(APPEND.code, LATE, encode([late])), stray], added


def owner_of(entry: Entry, parts: ChannelParts, before: str) -> str:
    """The checkpoint an entry concerns, if the entry before it concerned ``before``.

    ``parts`` are those at the entry. A note stored whole has its own record, because it may be far
    from its checkpoint; empty if its subject is deleted.
    """
    if entry.note != NOTE:
        return entry.id
    if entry.kind != SNAPSHOT:
        return before
    record = _decode_record(parts[CHECKPOINT][-1]) if CHECKPOINT in parts else None
    return record.id if record else ""


def take_stray(parts: ChannelParts) -> tuple[str, list[TaskWrite]] | None:
    found = parts.pop(STRAY, None)
    return _decode_stray(found[-1]) if found else None


def note_id(log: Log, checkpoint: str) -> str:
    """An id for a note: just above the newest checkpoint's.

    Stores find ids faster in the log's order.
    """
    newest = log.state.record.id if log.state.record else checkpoint
    try:
        return str(UUID(int=UUID(newest).int + log.seq + 1))
    except ValueError:
        return f"{newest}.{log.seq + 1}"
