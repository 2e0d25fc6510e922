"""Crash recovery: a thread's position, rebuilt from its log, where a run resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milecastle.codec.deltas import LogCodec, Operations
from milecastle.engine.reserved_channels import BEGAN, CONFIG, Reserved, split
from milecastle.errors import Corrupted
from milecastle.graph.schema import StateSchema
from milecastle.model.checkpoint import DELTA, HOLDING, SNAPSHOT, Entry
from milecastle.model.reducers import LAST, SET
from milecastle.ports.store import Chain


class Position(msgspec.Struct, kw_only=True):
    """The state at a checkpoint and its next nodes.

    ``entry`` is the checkpoint itself, ``None`` for a thread without one. ``was_seen`` says that
    a user has seen the thread here, so an interrupt at this point is over. ``results`` are the
    task rows in the step when the run was interrupted. ``settled`` and ``settled_id`` are seq
    and id of the entry that began the step, ``reruns`` how often it was resumed since. ``tail``
    holds the bodies since the last rollup; with the sizes it determines when to shorten the chain.
    ``supplied`` are operations the log lacks: start values a reducer builds on. ``config`` is the
    run's stored config.
    """

    values: dict[str, Any]
    entry: Entry | None = None
    was_seen: bool = False
    results: dict[str, dict[str, Any]] = {}
    reserved: Reserved = {}
    settled: int = 0
    settled_id: str = ""
    reruns: int = 0
    tail: list[bytes] = []
    snapshot_bytes: int = 0
    chain_bytes: int = 0
    supplied: Operations = []
    config: Any = None

    @property
    def contents(self) -> dict[str, Any]:
        config = {} if self.config is None else {CONFIG: self.config}
        return {**config, **self.values, **self.reserved}

    @property
    def seq(self) -> int:
        return self.entry.seq if self.entry else 0

    @property
    def step(self) -> int:
        return self.entry.step if self.entry else 0

    @property
    def place(self) -> str:
        """Identifies this step in this thread; interrupt ids start with it."""
        return f"{self.settled}.{self.step + 1}"

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.entry.nodes if self.entry else ()

    @property
    def next(self) -> tuple[str, ...]:
        return self.entry.next if self.entry else ()

    @property
    def route(self) -> tuple[str, ...]:
        return self.entry.route if self.entry else ()


def fresh_position(schema: StateSchema) -> Position:
    return Position(values=schema.initial())


def restore(
    chain: Chain,
    codec: LogCodec,
    schema: StateSchema | None = None,
    *,
    encoded: str | None = None,
    renamed: Mapping[str, str] = {},
) -> Position:
    """Rebuild the position at a chain's end; the schema supplies missing defaults.

    Channels that were ``renamed`` get their new names; a new one with a value keeps it.
    The reserved channel ``encoded`` is left as bytes, for callers that only count its items.
    """
    head = chain.entries[-1]
    entries = _since_snapshot(chain)
    behind = _check_whole(entries)
    bodies = codec.unseal_chain(entries)
    stored = codec.rebuild(bodies, encoded=encoded)
    reserved = split(stored)
    config = stored.pop(CONFIG, None)
    for old, new in renamed.items():
        if old in stored:
            stored.setdefault(new, stored.pop(old))
    began, reruns = _began(entries)
    settled, settled_id = reserved.get(BEGAN) or (began.seq, began.id)
    values = schema.complete(stored) if schema else stored
    return Position(
        values=values,
        entry=head,
        was_seen=_was_seen(entries),
        results={
            result.task: codec.decode_state(codec.unseal_result(result)) for result in chain.results
        },
        reserved=reserved,
        settled=settled,
        settled_id=settled_id,
        reruns=reruns,
        tail=bodies[behind:],
        snapshot_bytes=len(bodies[0]),
        chain_bytes=sum(map(len, bodies)),
        supplied=_supplied(schema, stored, values) if schema and values is not stored else [],
        config=config,
    )


def _supplied(
    schema: StateSchema, stored: Mapping[str, Any], values: Mapping[str, Any]
) -> Operations:
    operations: Operations = []
    for name in [name for name in values if name not in stored]:
        reducer = schema.channels[name].reducer
        if reducer is not LAST and (reducer.empty is None or values[name] != reducer.empty()):
            operations += (SET, name, values[name])
    return operations


def place_of(chain: Chain) -> str:
    began, _ = _began(_since_snapshot(chain))
    return f"{began.id}.{chain.entries[-1].step + 1}"


def _since_snapshot(chain: Chain) -> Sequence[Entry]:
    snapshots = [at for at, entry in enumerate(chain.entries) if entry.kind == SNAPSHOT]
    return chain.entries[snapshots[-1] if snapshots else 0 :]


def _check_whole(entries: Sequence[Entry]) -> int:
    """Number of entries up to a chain's last rollup; ``Corrupted`` if one is missing.

    Encryption authenticates each entry's pointers; they are compared with the chain here.
    """
    first, head = entries[0], entries[-1]
    if first.kind != SNAPSHOT or first.seq < head.base_seq:
        raise Corrupted("the log has no snapshot to start from", place=f"seq {head.base_seq}")
    for entry in entries:
        if entry.kind != DELTA and entry.roll_seq != entry.seq:
            raise Corrupted("an entry of the log was changed", place=f"seq {entry.seq}")
    cut = max(first.seq, head.roll_seq)
    behind = sum(entry.seq <= cut for entry in entries)
    if entries[behind - 1].seq != cut or len(entries) - behind != head.seq - cut:
        raise Corrupted("the log has lost an entry", place=f"below seq {head.seq}")
    return behind


def _was_seen(entries: Sequence[Entry]) -> bool:
    sources = (entry.source for entry in reversed(entries))
    newest = next((source for source in sources if source != "takeover"), "takeover")
    return newest in ("interrupt", "answer", "sleep", "update", "fork")


def _began(entries: Sequence[Entry]) -> tuple[Entry, int]:
    reruns = 0
    for entry in reversed(entries):
        if entry.source not in HOLDING:
            return entry, reruns
        reruns += entry.source in ("takeover", "answer") and entry.step == entries[-1].step
    return entries[0], reruns
