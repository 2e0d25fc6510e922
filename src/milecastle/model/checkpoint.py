"""A checkpoint: a thread's state after a step, and its next nodes.

``Entry`` is the row in a store: opaque payload, a few columns. ``Checkpoint`` is the
same with its state decoded. ``CheckpointMetadata`` is the same without any state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

from milecastle.model.keys import ThreadKey
from milecastle.support.reading import StateReader

S = TypeVar("S")

Source = Literal["input", "step", "interrupt", "answer", "sleep", "update", "fork", "takeover"]

HOLDING: frozenset[Source] = frozenset({"interrupt", "answer", "sleep", "takeover"})
"""Sources of entries that leave the thread in its current step: task results survive them."""

Kind = Literal[0, 1, 2]
DELTA: Literal[0] = 0
ROLLUP: Literal[1] = 1
SNAPSHOT: Literal[2] = 2


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A row in a thread's log.

    ``kind`` describes the payload: this entry's updates (delta), every entry's updates after
    the previous entry's ``roll_seq`` (rollup), or the whole state (snapshot). The state here is the
    snapshot at ``base_seq``, then every rollup up to ``roll_seq``, then every delta after it. For
    an entry that is a rollup or a snapshot, ``roll_seq == seq``. ``route`` names nodes whose
    outgoing edges are still to be evaluated.
    """

    seq: int
    id: str
    parent_id: str | None
    step: int
    source: Source
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    run_id: str
    fingerprint: str
    created_at: int
    kind: Kind
    base_seq: int
    roll_seq: int
    payload: bytes
    route: tuple[str, ...] = ()
    note: str = ""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task's result in a step, stored while its siblings still run.

    ``seq`` is the head when it was written, ``task`` the task's name within the step.
    """

    seq: int
    task: str
    payload: bytes


def item_bounds(task: str) -> tuple[str, str]:
    """Name bounds for a task's items, by code point: from, and below.

    They are ``work#0``, ``work#1`` and so on.
    """
    return f"{task}#0", f"{task}#:"


def count_of_task(task: str, names: Iterable[str]) -> int:
    first, last = item_bounds(task)
    return sum(name == task or first <= name < last for name in names)


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its state, as listed in a history."""

    key: ThreadKey
    seq: int
    id: str
    parent_id: str | None
    step: int
    source: Source
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    run_id: str
    fingerprint: str
    timestamp: datetime
    note: str = ""

    @classmethod
    def of(cls, key: ThreadKey, entry: Entry) -> CheckpointMetadata:
        return cls(
            key=key,
            seq=entry.seq,
            id=entry.id,
            parent_id=entry.parent_id,
            step=entry.step,
            source=entry.source,
            nodes=entry.nodes,
            next=entry.next or entry.route,
            run_id=entry.run_id,
            fingerprint=entry.fingerprint,
            timestamp=to_datetime(entry.created_at),
            note=entry.note,
        )


class Checkpoint(StateReader, CheckpointMetadata, Generic[S], frozen=True, kw_only=True, eq=False):
    """A checkpoint with its state, and its run's metadata.

    It is also a mapping, the state: ``checkpoint["topic"]``, ``dict(checkpoint)``.
    """

    state: S
    metadata: Mapping[str, Any] = {}

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = ("key", "seq", "id", "step", "source", "nodes", "next", "run_id")
        return [*((name, getattr(self, name)) for name in shown), ("keys", tuple(self))]


def to_datetime(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(
        microsecond=microseconds % 1_000_000
    )
