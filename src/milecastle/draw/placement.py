"""Horizontal places: long links straight, nodes in the middle of their neighbours.

The rows are aligned four times (from above and from below, leftmost and rightmost) into columns
that move as one, each column packed as tightly as the widths allow; a point's place is the mean of
its two middle places. Order and distances hold in all four, so they hold in the mean. At last,
small bends are straightened and lanes move close to their boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from milecastle.draw.ordering import Rows
from milecastle.draw.ranking import Pair, topological

Distance = Callable[[int, int], int]


def place_points(rows: Rows, distance: Distance) -> list[int]:
    """Each point's centre x; neighbours in a row are at least ``distance`` apart."""
    blocked = _crossing_stops(rows)
    layouts: list[list[int]] = []
    for upwards in (False, True):
        order = rows.order[::-1] if upwards else rows.order
        beside = rows.below if upwards else rows.above
        layouts.append(_place_once(order, beside, blocked, distance))
        mirrored = [row[::-1] for row in order]
        flipped = _place_once(mirrored, beside, blocked, lambda a, b: distance(b, a))
        layouts.append([-x for x in flipped])
    _line_up(layouts)
    return [sum(sorted(places)[1:3]) // 2 for places in zip(*layouts, strict=True)]


def _line_up(layouts: list[list[int]]) -> None:
    """Shift all onto the narrowest: the leftmost by their left ends, the others by their right."""
    narrowest = min(layouts, key=lambda xs: max(xs) - min(xs))
    left, right = min(narrowest), max(narrowest)
    for index, xs in enumerate(layouts):
        shift = right - max(xs) if index % 2 else left - min(xs)
        layouts[index] = [x + shift for x in xs]


def _crossing_stops(rows: Rows) -> set[Pair]:
    position = rows.positions()
    blocked: set[Pair] = set()
    for row in rows.order[:-1]:
        joins = [(upper, lower) for upper in row for lower in rows.below[upper]]
        inner = [join for join in joins if all(map(rows.is_stop, join))]
        outer = [join for join in joins if not all(map(rows.is_stop, join))]
        for a, b in inner:
            for c, d in outer:
                if (position[a] - position[c]) * (position[b] - position[d]) < 0:
                    blocked |= {(c, d), (d, c)}
    return blocked


def _place_once(
    order: Sequence[Sequence[int]], beside: list[list[int]], blocked: set[Pair], distance: Distance
) -> list[int]:
    root = _align(order, beside, blocked)
    gaps = _column_gaps(order, root, distance)
    place = _pack(gaps, sorted(set(root)))
    return [place[column] for column in root]


def _align(
    order: Sequence[Sequence[int]], beside: list[list[int]], blocked: set[Pair]
) -> list[int]:
    """Align each point with a middle neighbour, as long as columns do not cross."""
    root = list(range(len(beside)))
    position = {point: index for row in order for index, point in enumerate(row)}
    for row in order:
        taken = -1
        for point in row:
            others = sorted(beside[point], key=position.__getitem__)
            middle = others[(len(others) - 1) // 2 : len(others) // 2 + 1]
            for other in middle:
                if position[other] > taken and (other, point) not in blocked:
                    root[point] = root[other]
                    taken = position[other]
                    break
    return root


def _column_gaps(
    order: Sequence[Sequence[int]], root: list[int], distance: Distance
) -> dict[Pair, int]:
    gaps: dict[Pair, int] = {}
    for row in order:
        for left, right in pairwise(row):
            pair = (root[left], root[right])
            gaps[pair] = max(gaps.get(pair, 0), distance(left, right))
    return gaps


def _pack(gaps: dict[Pair, int], columns: list[int]) -> dict[int, int]:
    before: dict[int, list[int]] = {column: [] for column in columns}
    after: dict[int, list[int]] = {column: [] for column in columns}
    for left, right in gaps:
        before[right].append(left)
        after[left].append(right)
    order = topological(columns, before, after)
    place: dict[int, int] = {}
    for column in order:
        place[column] = max(
            (place[left] + gaps[left, column] for left in before[column]), default=0
        )
    for column in reversed(order):
        place[column] = min(
            (place[right] - gaps[column, right] for right in after[column]), default=place[column]
        )
    return place


_NEAR = 40
_PASSES = 8
_MOVES = 3_000_000
"""The most comparisons of joins and neighbours, all passes together."""


def straighten(rows: Rows, x: list[int], distance: Distance) -> None:
    """Shift columns slightly if that makes a join upright; none is ever bent by it."""
    joins = [(upper, lower) for upper, lowers in enumerate(rows.below) for lower in lowers]
    neighbours = [pair for row in rows.order for pair in pairwise(row)]
    for _ in range(min(_PASSES, _MOVES // (len(joins) * len(neighbours) + 1))):
        bends = [(abs(x[a] - x[b]), a, b) for a, b in joins if 0 < abs(x[a] - x[b]) <= _NEAR]
        moved = False
        for _, upper, lower in sorted(bends):
            for point, towards in ((lower, upper), (upper, lower)):
                shift = x[towards] - x[point]
                column = _column(rows, x, point)
                if shift and _has_room(column, shift, x, neighbours, distance):
                    moved = True
                    for member in column:
                        x[member] += shift
        if not moved:
            return


def _column(rows: Rows, x: list[int], point: int) -> set[int]:
    column = {point}
    stack = [point]
    while stack:
        here = stack.pop()
        for other in (*rows.above[here], *rows.below[here]):
            if x[other] == x[here] and other not in column:
                column.add(other)
                stack.append(other)
    return column


def _has_room(
    column: set[int], shift: int, x: list[int], neighbours: list[Pair], distance: Distance
) -> bool:
    return all(
        x[right] - x[left] + shift * ((right in column) - (left in column)) >= distance(left, right)
        for left, right in neighbours
        if (right in column) != (left in column)
    )


def tighten(rows: Rows, x: list[int], distance: Distance, lane: list[int], box: int) -> None:
    position = rows.positions()
    side = 1 if x[lane[0]] > x[box] else -1
    room: list[int] = []
    for stop in lane:
        other = rows.order[rows.rank[stop]][position[stop] - side]
        pair = (other, stop) if side > 0 else (stop, other)
        room.append((x[stop] - x[other]) * side - distance(*pair))
    for stop in lane:
        x[stop] -= side * min(room)
