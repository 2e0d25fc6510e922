"""The last touch to horizontal places: bends of a few pixels go, lanes move close to boxes."""

from __future__ import annotations

from itertools import pairwise

from milecastle.graph.draw.ordering import Rows
from milecastle.graph.draw.placement import Distance
from milecastle.graph.draw.ranking import Pair

__all__ = ["straighten", "tighten"]

_NEAR = 40
_PASSES = 8


def straighten(rows: Rows, x: list[int], distance: Distance) -> None:
    """Move columns a little where that makes one more join upright; none is ever bent by it."""
    joins = [(upper, lower) for upper, lowers in enumerate(rows.below) for lower in lowers]
    neighbours = _neighbours(rows)
    for _ in range(_PASSES):
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


def _neighbours(rows: Rows) -> list[Pair]:
    """Every two points that stand side by side."""
    return [pair for row in rows.order for pair in pairwise(row)]


def _column(rows: Rows, x: list[int], point: int) -> set[int]:
    """All points that upright joins connect with this one."""
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
    """Move a lane towards the side on which its box is, as far as all its rows allow."""
    position = rows.positions()
    side = 1 if x[lane[0]] > x[box] else -1
    room: list[int] = []
    for stop in lane:
        other = rows.order[rows.rank[stop]][position[stop] - side]
        pair = (other, stop) if side > 0 else (stop, other)
        room.append((x[stop] - x[other]) * side - distance(*pair))
    for stop in lane:
        x[stop] -= side * min(room)
