"""The order of nodes within rows: few crossings, and a slot for every link in each row it passes.

A link that passes rows has a *stop* in each of them, so that no link runs through a box. A link
that leads back over more than one row is a *lane*: a column of stops beside its two boxes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from itertools import pairwise

__all__ = ["Rows"]

_SWEEPS = 16
_SWAPS = 6


class Rows:
    """Points (boxes and stops) in rows, joined downwards from row to row."""

    def __init__(self, ranks: list[int]) -> None:
        """Put boxes into their rows, in the order of their numbers."""
        self.rank = list(ranks)
        self.boxes = len(ranks)
        self.above: list[list[int]] = [[] for _ in ranks]
        self.below: list[list[int]] = [[] for _ in ranks]
        self.order: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
        self.stubs: list[tuple[int, int]] = []
        for point, row in enumerate(ranks):
            self.order[row].append(point)

    def add_stop(self, row: int) -> int:
        """A new point that is not yet in the order of its row."""
        self.rank.append(row)
        self.above.append([])
        self.below.append([])
        return len(self.rank) - 1

    def join(self, upper: int, lower: int) -> None:
        """Join two points of neighbouring rows."""
        self.below[upper].append(lower)
        self.above[lower].append(upper)

    def add_path(self, top: int, bottom: int) -> list[int]:
        """Join two boxes through a stop in each row between them."""
        stops = [self.add_stop(row) for row in range(self.rank[top] + 1, self.rank[bottom])]
        path = [top, *stops, bottom]
        for stop in stops:
            self.order[self.rank[stop]].append(stop)
        for upper, lower in pairwise(path):
            self.join(upper, lower)
        return path

    def forget(self, count: int) -> None:
        """Take away all points but the first ``count``."""
        del self.rank[count:], self.above[count:], self.below[count:]
        for lists in (self.above, self.below, self.order):
            lists[:] = [[point for point in points if point < count] for points in lists]

    def positions(self) -> list[int]:
        """Where each point stands in its row."""
        position = [-1] * len(self.rank)
        for row in self.order:
            for index, point in enumerate(row):
                position[point] = index
        return position

    def is_stop(self, point: int) -> bool:
        """Whether the point is a stop and not a box."""
        return point >= self.boxes

    def crossings(self) -> int:
        """How many pairs of joins cross."""
        position = self.positions()
        return sum(self._crossings_below(row, position) for row in self.order[:-1])

    def _crossings_below(self, row: list[int], position: list[int]) -> int:
        seen: list[int] = []
        total = 0
        for point in row:
            ends = [position[other] for other in self.below[point]]
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
        return total

    def untangle(self) -> None:
        """Sweep down and up, a bounded number of times, and keep the best order seen."""
        self._depth_first()
        best, kept = self.crossings(), [list(row) for row in self.order]
        for sweep in range(_SWEEPS):
            if not best:
                break
            self._sweep(downwards=sweep % 2 == 0, turn_ties=sweep % 4 > 1)
            self._swap_neighbours(turn_ties=sweep % 4 > 1)
            found = self.crossings()
            if found < best:
                best, kept = found, [list(row) for row in self.order]
        self.order = kept

    def _depth_first(self) -> None:
        """Start with branches side by side, in the order in which they were declared."""
        seen = [False] * len(self.rank)
        rows: list[list[int]] = [[] for _ in self.order]
        for root in (point for row in self.order for point in row):
            stack = [root]
            while stack:
                point = stack.pop()
                if not seen[point]:
                    seen[point] = True
                    rows[self.rank[point]].append(point)
                    stack.extend(reversed(self.below[point]))
        self.order = rows

    def _sweep(self, *, downwards: bool, turn_ties: bool) -> None:
        """Sort each row by the mean place of its neighbours; ties may change places."""
        position = self.positions()
        beside = self.above if downwards else self.below
        for row in self.order if downwards else reversed(self.order):
            # Points with no neighbour on that side keep their place.
            joined = [point for point in row if beside[point]][:: -1 if turn_ties else 1]
            centre = {
                point: sum(position[other] for other in beside[point]) / len(beside[point])
                for point in joined
            }
            sorted_points = iter(sorted(joined, key=centre.__getitem__))
            row[:] = [next(sorted_points) if beside[point] else point for point in row]
            for index, point in enumerate(row):
                position[point] = index

    def _swap_neighbours(self, *, turn_ties: bool) -> None:
        position = self.positions()
        for turn in range(_SWAPS):
            least = 0 if turn_ties and not turn else 1
            if not sum(self._swap_in(row, position, least) for row in self.order):
                return

    def _swap_in(self, row: list[int], position: list[int], least: int) -> bool:
        better = False
        for index in range(len(row) - 1):
            left, right = row[index], row[index + 1]
            if self._gain(left, right, position) >= least:
                row[index], row[index + 1] = right, left
                position[left], position[right] = index + 1, index
                better = True
        return better

    def _gain(self, left: int, right: int, position: list[int]) -> int:
        """How many crossings fewer there are when the two change places."""
        gain = 0
        for beside in (self.above, self.below):
            rights = [position[other] for other in beside[right]]
            for other in beside[left]:
                here = position[other]
                gain += sum((here > there) - (here < there) for there in rights)
        return gain
