"""A step's task times, as stored in the step's entry: at most 1 kB for any step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from milecastle.support.prepared import prepared

DONE: Final = -1
PAUSED: Final = -2
"""Ends of a task's attempt besides an error: it returned; it asked, or sleeps."""


class TaskTime(NamedTuple):
    """A task's attempt. ``start`` and ``took`` are in the step's units.

    ``node`` is an index into the entry's nodes. ``item`` is its place in a fan-out, else -1.
    ``end`` is ``DONE``, ``PAUSED`` or an index into ``StepTimes.errors``.
    """

    node: int
    item: int
    start: int
    took: int
    attempt: int
    end: int


class NodeTime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node's attempts in a step with many: ``ran`` in all, ``failed`` among them."""

    node: int
    ran: int
    failed: int
    start: int
    stop: int


class ManyTimes(msgspec.Struct, frozen=True, array_like=True):
    """Attempts too many to be listed.

    ``running`` and ``durations`` are for the node with the most. ``running`` is how many ran at
    once on average, in equal parts of the time from ``start`` to ``stop`` for that node.
    ``durations`` counts attempts that took less than ``width``, than twice that, and so on; the
    last also counts longer ones.
    """

    nodes: tuple[NodeTime, ...]
    running: tuple[int, ...]
    width: int
    durations: tuple[int, ...]


@prepared
class StepTimes(msgspec.Struct, frozen=True, array_like=True):
    """A step's attempts, in columns. ``began`` is in microseconds since 1970, as is ``unit``.

    The columns are all attempts in this segment, in the order in which they ended, unless ``many``
    counts them: then the failed ones that ended last, and the slowest. A single member in ``nodes``
    is for all. ``attempts`` and ``ends`` are pairs: a row and its value, where that is not 1 or
    ``DONE``. ``step`` is the step's number: an entry may repeat an older step's times.
    """

    step: int
    began: int
    unit: int
    nodes: list[int]
    items: list[int]
    starts: list[int]
    took: list[int]
    attempts: list[int] = []
    ends: list[int] = []
    errors: list[str] = []
    many: ManyTimes | None = None

    @property
    def tasks(self) -> tuple[TaskTime, ...]:
        return tuple(self._tasks())

    def _tasks(self) -> Iterator[TaskTime]:
        nodes = self.nodes if len(self.nodes) != 1 else self.nodes * len(self.items)
        attempts = dict([*pairwise(self.attempts)][::2])
        ends = dict([*pairwise(self.ends)][::2])
        columns = zip(nodes, self.items, self.starts, self.took, strict=False)
        for row, (node, item, start, took) in enumerate(columns):
            yield TaskTime(node, item, start, took, attempts.get(row, 1), ends.get(row, DONE))
