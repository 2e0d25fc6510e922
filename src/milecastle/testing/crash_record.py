"""What one simulated course really did: which tasks ran, and what the store acknowledged."""

from __future__ import annotations

from collections import Counter
from typing import Any

from milecastle.codec.deltas import LogCodec
from milecastle.engine.effects import RunTask
from milecastle.errors import UnserializableState
from milecastle.graph.schema import StateSchema
from milecastle.ports.store import Batch

__all__ = ["CourseRecord", "encode_or_none"]


def encode_or_none(codec: LogCodec, values: dict[str, Any]) -> bytes | None:
    """The bytes of a state, if it can be stored."""
    try:
        return codec.encode_state(values)
    except UnserializableState:
        return None


class CourseRecord:
    """A witness of a simulation. It outlives the crash, as a person at the screen does.

    ``acknowledged`` holds the id of the first entry of each seq that the store said is durable.
    ``wasted`` are tasks that ran although their result was durable. ``changed`` are nodes that
    changed a value of the state that they were given; these are looked for when ``watching``.
    """

    def __init__(self, schema: StateSchema, codec: LogCodec, *, watching: bool) -> None:
        self.runs: Counter[str] = Counter()
        self.acknowledged: dict[int, str] = {}
        self.wasted: set[str] = set()
        self.changed: set[str] = set()
        self._schema = schema
        self._codec = codec
        self._watching = watching
        self._kept: set[str] = set()
        self._given: tuple[dict[str, Any], bytes | None] = ({}, None)

    def starting(self, task: RunTask) -> None:
        """A task is about to run."""
        name = task.node.name
        self.runs[name] += 1
        if name in self._kept:
            self.wasted.add(name)
        if self._watching:
            values = self._schema.read_input(task.state)
            self._given = values, encode_or_none(self._codec, values)

    def ended(self, task: RunTask) -> None:
        """A task returned or raised; what it was given should be as it was."""
        values, before = self._given
        if self._watching and encode_or_none(self._codec, values) != before:
            self.changed.add(task.node.name)

    def committed(self, batch: Batch) -> None:
        """The store acknowledged a batch."""
        for entry in batch.entries:
            self.acknowledged.setdefault(entry.seq, entry.id)
            if entry.source != "takeover":
                self._kept.clear()
        self._kept.update(result.task for result in batch.results)
