"""What one simulated course really did: which tasks ran, and what the store acknowledged."""

from __future__ import annotations

from collections import Counter
from typing import Any

from milecastle.codec.deltas import LogCodec
from milecastle.engine.effects import RunTask
from milecastle.errors import UnserializableState
from milecastle.model.checkpoint import HOLDING
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch

__all__ = ["CourseRecord", "encode_or_none"]

Row = tuple[ThreadKey, str]
"""What a store keeps besides entries, by its name: ``2:task``, ``2?task/name``."""


def encode_or_none(codec: LogCodec, values: dict[str, Any]) -> bytes | None:
    """The bytes of a state, if it can be stored."""
    try:
        return codec.encode_state(values)
    except UnserializableState:
        return None


class CourseRecord:
    """A witness of a simulation. It outlives the crash, as a person at the screen does.

    ``acknowledged`` holds, for each thread, the id of the first entry of each seq that the store
    said is durable. ``wasted`` are tasks that ran although their result, or their step, was
    durable; ``unsaved`` are those whose result was not durable when the engine went on to wait
    for others. ``done`` counts what was done to be recorded (``ctx.once``), by thread and row;
    ``repeated`` is what was done again although its record was durable. ``changed`` are nodes that
    changed a value of the state that they were given; these are looked for when ``watching``.
    """

    def __init__(self, codec: LogCodec, *, watching: bool) -> None:
        self.runs: Counter[str] = Counter()
        self.acknowledged: dict[ThreadKey, dict[int, str]] = {}
        self.wasted: set[str] = set()
        self.unsaved: set[str] = set()
        self.done: Counter[Row] = Counter()
        self.repeated: set[str] = set()
        self.changed: set[str] = set()
        self._codec = codec
        self._watching = watching
        self._kept: dict[ThreadKey, set[str]] = {}
        self._steps: dict[ThreadKey, int] = {}
        self._told: list[tuple[str, Row]] = []
        self._given: tuple[dict[str, Any], bytes | None] = ({}, None)

    def starting(self, task: RunTask) -> None:
        """A task is about to run."""
        self.runs[task.node.name] += 1
        if task.desk.key is not None and self._is_durable(_row(task, task.desk.key)):
            self.wasted.add(task.id)
        if self._watching:
            values = task.desk.values(task.state)
            self._given = values, encode_or_none(self._codec, values)

    def ended(self, task: RunTask) -> None:
        """A task returned or raised; what it was given should be as it was."""
        values, before = self._given
        if self._watching and encode_or_none(self._codec, values) != before:
            self.changed.add(task.node.name)

    def told(self, task: RunTask) -> None:
        """The engine is about to learn that one of several tasks ended well."""
        if task.desk.key is not None:
            self._told.append((task.id, _row(task, task.desk.key)))

    def waiting(self) -> None:
        """The engine waits for others: what it was told of must be durable by now."""
        told, self._told = self._told, []
        self.unsaved.update(task for task, row in told if not self._is_durable(row))

    def recording(self, batch: Batch) -> None:
        """A node did something, and is about to have it recorded."""
        for result in batch.results:
            self.done[batch.key, result.task] += 1
            if result.task in self._kept.get(batch.key, ()):
                self.repeated.add(result.task)

    def committed(self, batch: Batch) -> None:
        """The store acknowledged a batch."""
        key = batch.key
        acknowledged = self.acknowledged.setdefault(key, {})
        kept = self._kept.setdefault(key, set())
        for entry in batch.entries:
            acknowledged.setdefault(entry.seq, entry.id)
            if entry.source not in HOLDING:
                kept.clear()
            if entry.source == "step":
                self._steps[key] = entry.step
        kept.update(result.task for result in batch.results)

    def crashed(self) -> None:
        """The process is gone, with what it was told."""
        self._told = []

    def _is_durable(self, row: Row) -> bool:
        key, name = row
        step = int(name.partition(":")[0])
        return name in self._kept.get(key, ()) or step <= self._steps.get(key, 0)


def _row(task: RunTask, key: ThreadKey) -> Row:
    return key, task.desk.outcome_row(task.id)
