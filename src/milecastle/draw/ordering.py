"""Node order within rows: few crossings, and a slot for every link in each row it passes.

A link passing rows has a *stop* in each row, so no link runs through a box. A link that leads back
over more than one row is a *lane*: a column of stops beside its two boxes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from itertools import pairwise

_SWEEPS = 16
_SWAPS = 6


class Rows:
    """Points (boxes and stops) in rows, joined downwards from row to row."""

    def __init__(self, ranks: list[int]) -> None:
        self.rank = list(ranks)
        self.boxes = len(ranks)
        self.above: list[list[int]] = [[] for _ in ranks]
        self.below: list[list[int]] = [[] for _ in ranks]
        self.order: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
        self.stubs: list[tuple[int, int]] = []
        for point, row in enumerate(ranks):
            self.order[row].append(point)

    def add_stop(self, row: int) -> int:
        self.rank.append(row)
        self.above.append([])
        self.below.append([])
        return len(self.rank) - 1

    def join(self, upper: int, lower: int) -> None:
        self.below[upper].append(lower)
        self.above[lower].append(upper)

    def add_path(self, top: int, bottom: int) -> list[int]:
        stops = [self.add_stop(row) for row in range(self.rank[top] + 1, self.rank[bottom])]
        path = [top, *stops, bottom]
        for stop in stops:
            self.order[self.rank[stop]].append(stop)
        for upper, lower in pairwise(path):
            self.join(upper, lower)
        return path

    def forget(self, count: int) -> None:
        del self.rank[count:], self.above[count:], self.below[count:]
        for lists in (self.above, self.below, self.order):
            lists[:] = [[point for point in points if point < count] for points in lists]

    def positions(self) -> list[int]:
        position = [-1] * len(self.rank)
        for row in self.order:
            for index, point in enumerate(row):
                position[point] = index
        return position

    def is_stop(self, point: int) -> bool:
        return point >= self.boxes

    def crossings(self) -> int:
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
        gain = 0
        for beside in (self.above, self.below):
            rights = [position[other] for other in beside[right]]
            for other in beside[left]:
                here = position[other]
                gain += sum((here > there) - (here < there) for there in rights)
        return gain


# What it costs to lead a lane across another link, or along the left side.
_CROSSING = 4
_LEFT = 3


def add_lane(rows: Rows, top: int, bottom: int) -> list[int]:
    """Lead a lane from beside ``top`` down to beside ``bottom`` with the fewest crossings.

    The ends stand next to their boxes, with no box between; both are on the same side. The two
    boxes may be one.
    """
    position = rows.positions()
    span = range(rows.rank[top], rows.rank[bottom])
    steps = [_step_costs(rows, row, position) for row in span]
    right_cost, right = _best_slots(steps, position[top] + 1, position[bottom] + 1)
    left_cost, left = _best_slots(steps, position[top], position[bottom])
    lane: list[int] = []
    slots = right if right_cost <= left_cost + _LEFT else left
    for row, slot in enumerate(slots, start=rows.rank[top]):
        stop = rows.add_stop(row)
        rows.order[row].insert(slot, stop)
        if lane:
            rows.join(lane[-1], stop)
        lane.append(stop)
    rows.stubs += [(top, lane[0]), (bottom, lane[-1])]
    return lane


def _best_slots(steps: list[list[list[int]]], start: int, goal: int) -> tuple[int, list[int]]:
    costs = {start: 0}
    origins: list[dict[int, int]] = []
    for number, step in enumerate(steps, start=1):
        allowed = [goal] if number == len(steps) else range(len(step[0]))
        # Of equally cheap slots the rightmost.
        ways = {b: min((cost + step[a][b], -a) for a, cost in costs.items()) for b in allowed}
        origins.append({slot: -origin for slot, (_, origin) in ways.items()})
        costs = {slot: cost for slot, (cost, _) in ways.items()}
    slots = [goal]
    for origin in reversed(origins):
        slots.append(origin[slots[-1]])
    return costs[goal], slots[::-1]


def _step_costs(rows: Rows, row: int, position: list[int]) -> list[list[int]]:
    upper, lower = len(rows.order[row]), len(rows.order[row + 1])
    table = [[0] * (lower + 1)]
    for point in rows.order[row]:
        counts = list(table[-1])
        for other in rows.below[point]:
            for b in range(position[other] + 1, lower + 1):
                counts[b] += 1
        table.append(counts)
    stubs = _stub_costs(rows, row + 1, position)
    # table[a][b]: joins that end left of both slots. Those left of one slot only are crossed.
    return [
        [
            _CROSSING * (table[a][lower] + table[upper][b] - 2 * table[a][b]) + stubs[b]
            for b in range(lower + 1)
        ]
        for a in range(upper + 1)
    ]


def _stub_costs(rows: Rows, row: int, position: list[int]) -> list[int]:
    costs = [0] * (len(rows.order[row]) + 1)
    for box, stop in rows.stubs:
        if rows.rank[box] == row:
            low, high = sorted((position[box], position[stop]))
            for slot in range(low + 1, high + 1):
                costs[slot] += _CROSSING
    return costs
