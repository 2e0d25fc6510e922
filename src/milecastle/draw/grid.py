"""A plain layout for large graphs: boxes in a grid, links along the streets between them.

Its cost is linear in its output: no order is searched for. Links share streets, and their labels
are not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import isqrt

from milecastle.draw.shapes import Box, Layout, Tie, Wire

_STREET = 44
_MARGIN = 6
"""The width of a street, and how far links in it stay away from boxes."""

_TRACKS = 8
_TRACK = (_STREET - 2 * _MARGIN) // _TRACKS
_MOST_COLUMNS = 16


def arrange_in_grid(sizes: Sequence[tuple[int, int]], ties: Sequence[Tie]) -> Layout:
    columns = min(isqrt(len(sizes) - 1) + 1, _MOST_COLUMNS)
    rows = -(-len(sizes) // columns)
    widths = [max(width for width, _ in sizes[column::columns]) for column in range(columns)]
    heights = [
        max(height for _, height in sizes[row * columns : (row + 1) * columns])
        for row in range(rows)
    ]
    lefts = _starts(widths)
    tops = _starts(heights)
    boxes = [
        Box(
            lefts[at % columns] + (widths[at % columns] - width) // 2,
            tops[at // columns] + (heights[at // columns] - height) // 2,
            width,
            height,
        )
        for at, (width, height) in enumerate(sizes)
    ]

    def wire(number: int, tie: Tie) -> Wire:
        track = _MARGIN + number % _TRACKS * _TRACK
        source, target = boxes[tie.source], boxes[tie.target]
        (x, _), (to_x, _) = source.middle, target.middle
        below = tops[tie.source // columns + 1] - _STREET + track
        above = tops[tie.target // columns] - _STREET + track
        points = [(x, source.y + source.height), (x, below)]
        if below != above:
            beside = lefts[tie.target % columns] - _STREET + track
            points += [(beside, below), (beside, above)]
        points += [(to_x, above), (to_x, target.y)]
        return Wire(tuple(dict.fromkeys(points)), None)

    wires = tuple(wire(number, tie) for number, tie in enumerate(ties))
    return Layout(tuple(boxes), wires, lefts[-1], tops[-1])


def _starts(lengths: list[int]) -> list[int]:
    return list(accumulate((length + _STREET for length in lengths), initial=_STREET))
