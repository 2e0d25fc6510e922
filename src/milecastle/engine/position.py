"""A position: where a thread stands, rebuilt from its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from milecastle.codec.deltas import LogCodec
from milecastle.engine.hidden import Hidden, split
from milecastle.errors import Corrupted
from milecastle.graph.schema import StateSchema
from milecastle.model.checkpoint import HOLDING, SNAPSHOT, Entry
from milecastle.ports.store import Chain

__all__ = ["Position", "fresh_position", "restore"]


class Position(msgspec.Struct, kw_only=True):
    """The state at a checkpoint and what runs next there.

    ``entry`` is the checkpoint itself, ``None`` for a thread that has none. ``was_seen`` says that
    somebody looked at the thread here, so that an interrupt at this place is over. ``results`` are
    what tasks of the step had left when the run was cut short. ``settled`` is the seq of the entry
    that began the step, ``reruns`` how often it was gone on with since. ``tail`` holds the bodies
    since the last rollup; with the sizes it tells the writer when to cut the chain short.
    """

    values: dict[str, Any]
    entry: Entry | None = None
    was_seen: bool = False
    results: dict[str, dict[str, Any]] = {}
    hidden: Hidden = {}
    settled: int = 0
    reruns: int = 0
    tail: list[bytes] = []
    snapshot_bytes: int = 0
    chain_bytes: int = 0

    @property
    def seq(self) -> int:
        """The seq of the checkpoint; 0 when there is none."""
        return self.entry.seq if self.entry else 0

    @property
    def step(self) -> int:
        """The step that led here; 0 when there is none."""
        return self.entry.step if self.entry else 0

    @property
    def place(self) -> str:
        """Tells this step of this thread from every other; ids of interrupts begin with it."""
        return f"{self.settled}.{self.step + 1}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that produced the state."""
        return self.entry.nodes if self.entry else ()

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes to run next."""
        return self.entry.next if self.entry else ()

    @property
    def route(self) -> tuple[str, ...]:
        """The nodes whose edges are still to be evaluated."""
        return self.entry.route if self.entry else ()


def fresh_position(schema: StateSchema) -> Position:
    """Where a thread stands to which nothing happened yet."""
    return Position(values=schema.initial())


def restore(chain: Chain, codec: LogCodec, schema: StateSchema | None = None) -> Position:
    """Rebuild the position at the end of a chain; the schema supplies defaults that are missing."""
    head = chain.entries[-1]
    first = max(
        index for index, entry in enumerate(chain.entries) if entry.kind == SNAPSHOT or index == 0
    )
    entries = chain.entries[first:]
    if entries[0].kind != SNAPSHOT:
        raise Corrupted("the log has no snapshot to start from", place=f"seq {head.base_seq}")
    bodies = [codec.unseal(entry.payload, entry.seq, entry.kind) for entry in entries]
    values = codec.rebuild(bodies)
    hidden = split(values)
    settled, reruns = _settled(entries)
    behind = sum(entry.seq <= head.roll_seq for entry in entries)
    return Position(
        values=schema.complete(values) if schema else values,
        entry=head,
        was_seen=_was_seen(entries),
        results={
            result.task: codec.decode_state(
                codec.unseal(result.payload, result.seq, task=result.task)
            )
            for result in chain.results
        },
        hidden=hidden,
        settled=settled,
        reruns=reruns,
        tail=bodies[behind:],
        snapshot_bytes=len(bodies[0]),
        chain_bytes=sum(map(len, bodies)),
    )


def _was_seen(entries: Sequence[Entry]) -> bool:
    """Whether the newest entry, takeovers aside, is one at which a run stops for somebody."""
    sources = (entry.source for entry in reversed(entries))
    newest = next((source for source in sources if source != "takeover"), "takeover")
    return newest in ("interrupt", "answer", "sleep", "update", "fork")


def _settled(entries: Sequence[Entry]) -> tuple[int, int]:
    """The seq of the entry that began the step, and how often the step was gone on with."""
    reruns = 0
    for entry in reversed(entries):
        if entry.source not in HOLDING:
            return entry.seq, reruns
        reruns += entry.source in ("takeover", "answer")
    return entries[0].seq, reruns
