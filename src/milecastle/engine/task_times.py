"""Measuring when a step's tasks run, for display only.

Rules:

- Nothing is decided by these times.
- The clock is read once for tasks that start, or end, together.
- What is kept of a step is at most 1 kB, however many tasks it has.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import islice, pairwise
from operator import sub
from typing import Any, Final

import msgspec.msgpack

from milecastle.engine.tasks import Task
from milecastle.model.step_times import PAUSED, ManyTimes, NodeTime, StepTimes
from milecastle.ports.clock import Clock

LISTED: Final = 64
"""Up to so many attempts of a step are listed one by one."""
_NOTABLE: Final = 20
_PARTS: Final = 60
_WIDTHS: Final = 24
_SAMPLE: Final = 500
_NODES: Final = 6
_ERRORS: Final = 4
_NAME: Final = 32
_TICKS: Final = 0xFFFF


class TaskTimes:
    """One step's attempts in one process. ``now`` is when the last ones started or ended.

    ``ended`` has three members for each attempt, in a list without tuples, because a map has many:
    the task, and when it started and ended.
    """

    __slots__ = ("_attempts", "_clock", "_ends", "_origin", "ended", "now")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin = self.now = clock.monotonic()
        self.ended: list[Any] = []
        self._attempts: dict[int, int] | None = None
        self._ends: dict[int, str] | None = None

    def tick(self) -> None:
        self.now = self._clock.monotonic()

    def stop(self, task: Task, started: int, attempt: int, error: str | None) -> None:
        row = len(self.ended) // 3
        if attempt != 1:
            self._attempts = self._attempts or {}
            self._attempts[row] = attempt
        if error is not None:
            self._ends = self._ends or {}
            self._ends[row] = error[:_NAME]
        self.ended += (task, started, self.now)

    def take(self, step: int, nodes: Sequence[str], tasks: int) -> bytes | None:
        """The times to store, encoded and forgotten; ``None`` if those of entries say the same.

        ``nodes`` are those of the entry, and ``tasks`` is how many the step has.
        """
        ended, self.ended = self.ended, []
        if not ended or (tasks == 1 and len(ended) == 3):
            return None
        own, starts, stops = ended[0::3], ended[1::3], ended[2::3]
        del ended
        clock, origin = self._clock, self._origin
        took = array("q", map(sub, stops, starts))
        unit = max(1, -(-(max(stops) - origin) // _TICKS))
        rows: Sequence[int] = range(len(own))
        many = None
        if len(own) > LISTED:
            many = self._many(unit, nodes, own, starts, stops, took)
            failed = [row for row, error in (self._ends or {}).items() if error]
            least = nlargest(_NOTABLE, took)[-1]
            slowest = [row for row, one in enumerate(took) if one > least]
            others = (row for row, one in enumerate(took) if one == least)
            slowest += islice(others, _NOTABLE - len(slowest))
            rows = list(dict.fromkeys([*failed[-_NOTABLE:], *slowest]))
            own, starts = ([column[row] for row in rows] for column in (own, starts))
            took = array("q", [took[row] for row in rows])
        ends, errors = self._numbered(rows)
        attempts = self._attempts
        times = StepTimes(
            step=step,
            began=clock.now() - (clock.monotonic() - origin),
            unit=unit,
            nodes=_places(own, nodes),
            items=[task.item for task in own],
            starts=[(start - origin) // unit for start in starts],
            took=[one // unit for one in took],
            attempts=_pairs(rows, attempts) if attempts else [],
            ends=ends,
            errors=errors,
            many=many,
        )
        return msgspec.msgpack.encode(times)

    def _numbered(self, rows: Sequence[int]) -> tuple[list[int], list[str]]:
        """The ends that are not ``DONE``, and the most frequent error types.

        The last type stands for all others.
        """
        if self._ends is None:
            return [], []
        counts = Counter(filter(None, self._ends.values()))
        errors = [name for name, _ in counts.most_common(_ERRORS)]
        if len(counts) > _ERRORS:
            errors[-1] = "other errors"
        numbers = {name: number for number, name in enumerate(errors)}
        ends = {
            row: numbers.get(error, len(errors) - 1) if error else PAUSED
            for row, error in self._ends.items()
        }
        return _pairs(rows, ends), errors

    def _many(
        self,
        unit: int,
        nodes: Sequence[str],
        own: Sequence[Task],
        starts: Sequence[int],
        stops: Sequence[int],
        took: Sequence[int],
    ) -> ManyTimes:
        names = [] if len(nodes) == 1 else [task.node.name for task in own]
        counts = Counter(names) if names else Counter({nodes[0]: len(own)})
        failed = Counter(own[row].node.name for row, error in (self._ends or {}).items() if error)
        places = {name: place for place, name in enumerate(nodes)}
        found: list[NodeTime] = []
        running: tuple[int, ...] = ()
        width, durations = 1, tuple[int, ...]()
        for name, count in counts.most_common(_NODES):
            begun, over, lasted = starts, stops, took
            if len(counts) > 1:
                rows = [row for row, one in enumerate(names) if one == name]
                begun, over, lasted = ([c[row] for row in rows] for c in (starts, stops, took))
            first, last = min(begun), max(over)
            if not found:
                running = _running(begun, over, first, last)
                width, durations = _durations(lasted, unit)
            ends = (first - self._origin) // unit, (last - self._origin) // unit
            found.append(NodeTime(places.get(name, -1), count, failed[name], *ends))
        return ManyTimes(tuple(found), running, width, durations)


def _places(tasks: Sequence[Task], nodes: Sequence[str]) -> list[int]:
    if len(nodes) == 1:
        return [0]
    places = {name: place for place, name in enumerate(nodes)}
    found = [places.get(task.node.name, -1) for task in tasks]
    return found[:1] if found.count(found[0]) == len(found) else found


def _pairs(rows: Sequence[int], values: Mapping[int, int]) -> list[int]:
    return [part for at, row in enumerate(rows) if row in values for part in (at, values[row])]


def _running(starts: Iterable[int], stops: Iterable[int], first: int, last: int) -> tuple[int, ...]:
    """Tasks running at once, on average over each equal part of the time.

    The time spent until a moment is the sum over starts before it, less that over stops.
    """
    if last == first:
        return ()
    spent = [0.0] * (_PARTS + 1)
    edges = [first + (last - first) * part / _PARTS for part in range(_PARTS + 1)]
    for moments, sign in ((starts, 1), (stops, -1)):
        ordered = sorted(moments)
        behind = total = 0
        for part, edge in enumerate(edges):
            before = bisect_left(ordered, edge, behind)
            total += sum(ordered[behind:before])
            spent[part] += sign * (before * edge - total)
            behind = before
    length = (last - first) / _PARTS
    return tuple(round((after - before) / length) for before, after in pairwise(spent))


def _durations(took: Sequence[int], unit: int) -> tuple[int, tuple[int, ...]]:
    """A width in units, and how many took less than each multiple of it; the last has the rest.

    The width is chosen so that about 98 % are below the last, by a sample.
    """
    sample = sorted(took[:: -(-len(took) // _SAMPLE)])
    most = sample[len(sample) * 49 // 50]
    width = max(1, -(-most // ((_WIDTHS - 1) * unit)))
    step = width * unit
    counts = Counter(one // step for one in took)
    widths = [counts[place] for place in range(_WIDTHS - 1)]
    return width, (*widths, len(took) - sum(widths))
