"""A small layered layout: boxes in rows, links downwards, cycles closed in lanes at the side.

Rules:

- Boxes never overlap, and no link passes through a box it does not join.
- Every coordinate is a whole number.
- A graph that would take too long is laid out in a grid. The limits count boxes and links, so the
  same graph is always drawn in the same way.
- Between two corners of a wire that differ in both x and y, a curve that stays within the
  rectangle of the two is meant; such a rectangle never touches a box from inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from milecastle.draw.grid import arrange_in_grid
from milecastle.draw.ordering import Rows, add_lane
from milecastle.draw.placement import place_points, straighten, tighten
from milecastle.draw.ranking import assign_ranks, find_back_links
from milecastle.draw.shapes import Box, Layout, Tie, Wire

LABEL_HEIGHT = 18
LOOP = 2
_BOX_GAP, _STOP_GAP = 32, 18
_ROW_GAP, _LABEL_GAP, _MOST_EXTRA = 44, 24, 56
_PORT, _FOOT = 12, 16

_LOOKS, _STOPS, _SLOTS = 8_000_000, 1500, 300_000
"""The most for a layered layout, each about 0.3 seconds: links that are followed to find cycles,
rows that links pass, and slots that are compared to lead lanes."""

_KEPT = 32
"""Layouts that are kept: a page is asked for again and again."""


class _Strand(NamedTuple):
    path: list[int]
    rises: bool
    is_lane: bool
    label_at: int | None


def arrange(
    sizes: Sequence[tuple[int, int]],
    ties: Sequence[Tie],
    *,
    first: int | None = None,
    last: int | None = None,
) -> Layout:
    """Lay out boxes with these sizes; ``first`` on top, ``last`` at the bottom."""
    if not sizes:
        return Layout((), (), 0, 0)
    return _arranged(tuple(sizes), tuple(ties), first, last)


@lru_cache(maxsize=_KEPT)
def _arranged(
    sizes: tuple[tuple[int, int], ...], ties: tuple[Tie, ...], first: int | None, last: int | None
) -> Layout:
    if len(ties) * (len(sizes) + len(ties)) > _LOOKS:
        return arrange_in_grid(sizes, ties)
    pairs = [(tie.source, tie.target) for tie in ties]
    strong = [number for number, tie in enumerate(ties) if tie.strong]
    back = find_back_links(len(sizes), pairs, strong)
    down = [pair for number, pair in enumerate(pairs) if number not in back]
    ranks = assign_ranks(len(sizes), down, first, last)
    if not _is_small(_make_room_for_labels(ranks, ties, back), ties, back):
        return arrange_in_grid(sizes, ties)
    return _Arrangement(sizes, ties, back, ranks).layout()


def _is_small(ranks: list[int], ties: Sequence[Tie], back: set[int]) -> bool:
    spans = [abs(ranks[tie.source] - ranks[tie.target]) for tie in ties]
    stops, lanes = sum(spans), sum(spans[number] + 1 for number in back)
    width = (stops + len(ranks)) // (max(ranks) + 1)
    return stops - len(ties) <= _STOPS and lanes * width**2 <= _SLOTS


class _Arrangement:
    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        ties: Sequence[Tie],
        back: set[int],
        ranks: list[int],
    ) -> None:
        self.ties = ties
        self.back = back
        self.rows = Rows(_make_room_for_labels(ranks, ties, back))
        self.strands = self._lead(ranks)
        self.widths = [width for width, _ in sizes] + [0] * (len(self.rows.rank) - len(sizes))
        for tie, strand in zip(ties, self.strands, strict=True):
            if strand.label_at is not None:
                loop = 2 * LOOP if tie.source == tie.target else 0
                self.widths[strand.label_at] = tie.label + loop
        self.heights = [height for _, height in sizes]
        self.x = self._places()
        self.ports = self._side_ports()
        self.bands = self._bands()

    def _lead(self, ranks: list[int]) -> list[_Strand]:
        strands: dict[int, _Strand] = {}
        lanes: list[int] = []
        for number, tie in enumerate(self.ties):
            rises = number in self.back
            if rises and ranks[tie.source] - ranks[tie.target] != 1:
                lanes.append(number)
                continue
            top, bottom = (tie.target, tie.source) if rises else (tie.source, tie.target)
            path = self.rows.add_path(top, bottom)
            label_at = (path[-2] if rises else path[1]) if tie.label else None
            strands[number] = _Strand(path, rises, False, label_at)
        self._untangle(lanes)
        # Self loops outermost, then long before short: so lanes of one box do not cross.
        span = [ranks[tie.source] - ranks[tie.target] for tie in self.ties]
        lanes.sort(key=lambda number: (span[number] > 0, -span[number], number))
        for number in lanes:
            tie = self.ties[number]
            path = add_lane(self.rows, tie.target, tie.source)
            label_at = path[max(-2, -len(path))] if tie.label else None
            strands[number] = _Strand(path, True, True, label_at)
        return [strands[number] for number in range(len(self.ties))]

    def _untangle(self, lanes: list[int]) -> None:
        """Order the rows as if lanes were downward links, to have their ends outside."""
        count = len(self.rows.rank)
        for number in lanes:
            if self.ties[number].source != self.ties[number].target:
                self.rows.add_path(self.ties[number].target, self.ties[number].source)
        self.rows.untangle()
        self.rows.forget(count)

    def _places(self) -> list[int]:
        x = place_points(self.rows, self._distance)
        straighten(self.rows, x, self._distance)
        # The innermost lanes move first and make room for the others.
        lanes = [
            (tie, strand)
            for tie, strand in zip(self.ties, self.strands, strict=True)
            if strand.is_lane
        ]
        lanes.sort(key=lambda lane: abs(x[lane[1].path[0]] - x[lane[0].target]))
        for tie, strand in lanes:
            tighten(self.rows, x, self._distance, strand.path, tie.target)
        return x

    def _distance(self, left: int, right: int) -> int:
        boxes = not (self.rows.is_stop(left) or self.rows.is_stop(right))
        gap = _BOX_GAP if boxes else _STOP_GAP
        return (self.widths[left] + 1) // 2 + (self.widths[right] + 1) // 2 + gap

    def _side_ports(self) -> dict[tuple[int, bool], int]:
        """Distance from its box's top to each lane's ends, by (tie, at its source).

        From the top: those that leave, inner before outer, then those that arrive, outer before
        inner; no two of them cross.
        """
        sides: dict[tuple[int, bool], list[tuple[int, int, int]]] = {}
        for number, (tie, strand) in enumerate(zip(self.ties, self.strands, strict=True)):
            if strand.is_lane:
                for arrives, box, stop in (
                    (0, tie.source, strand.path[-1]),
                    (1, tie.target, strand.path[0]),
                ):
                    reach = self.x[stop] - self.x[box]
                    order = -abs(reach) if arrives else abs(reach)
                    sides.setdefault((box, reach > 0), []).append((arrives, order, number))
        for (box, _), ends in sides.items():
            self.heights[box] = max(self.heights[box], _PORT * (len(ends) + 1))
        return {
            (number, not arrives): self.heights[box] * index // (len(ends) + 1)
            for (box, _), ends in sides.items()
            for index, (arrives, _, number) in enumerate(sorted(ends), start=1)
        }

    def _bands(self) -> list[tuple[int, int]]:
        bands: list[tuple[int, int]] = []
        y = 0
        for row in self.rows.order:
            boxes = [self.heights[point] for point in row if not self.rows.is_stop(point)]
            height = max(boxes, default=LABEL_HEIGHT)
            if bands:
                y += self._gap_above(row, labels=not boxes)
            bands.append((y, y + height))
            y += height
        return bands

    def _gap_above(self, row: list[int], *, labels: bool) -> int:
        above = self.rows.order[self.rows.rank[row[0]] - 1]
        labels = labels or all(map(self.rows.is_stop, above))
        lean = max(
            (
                abs(self.x[point] - self.x[other])
                for point in row
                for other in self.rows.above[point]
            ),
            default=0,
        )
        return (_LABEL_GAP if labels else _ROW_GAP) + min(lean // 9, _MOST_EXTRA)

    def layout(self) -> Layout:
        boxes: list[Box] = []
        for point in range(self.rows.boxes):
            top, bottom = self.bands[self.rows.rank[point]]
            width, height = self.widths[point], self.heights[point]
            x, y = self.x[point] - width // 2, (top + bottom - height) // 2
            boxes.append(Box(x, y, width, height))
        wires = self._wires(boxes)
        labels = [wire.label for wire in wires if wire.label]
        corners = [x for wire in wires for x, _ in wire.points]
        left = min([*(box.x for box in [*boxes, *labels]), *corners])
        right = max([*(box.x + box.width for box in [*boxes, *labels]), *corners])
        return Layout(
            tuple(box._replace(x=box.x - left) for box in boxes),
            tuple(_shift(wire, -left) for wire in wires),
            right - left,
            self.bands[-1][1],
        )

    def _wires(self, boxes: list[Box]) -> list[Wire]:
        feet = self._feet(boxes)
        wires: list[Wire] = []
        for number, strand in enumerate(self.strands):
            if strand.is_lane:
                points = self._lane_points(number, strand, boxes)
            else:
                ends = feet.get((number, True), 0), feet.get((number, False), 0)
                points = self._points(strand, boxes, *ends)
            points = points[::-1] if strand.rises else points
            wires.append(Wire(tuple(dict.fromkeys(points)), self._label(number, strand)))
        return wires

    def _points(
        self, strand: _Strand, boxes: list[Box], top_offset: int, bottom_offset: int
    ) -> list[tuple[int, int]]:
        top, *stops, bottom = strand.path
        x, lower_x = self.x[top] + top_offset, self.x[bottom] + bottom_offset
        points = [(x, boxes[top].y + boxes[top].height), (x, self.bands[self.rows.rank[top]][1])]
        for stop in stops:
            points += self._pass(stop)
        points += [(lower_x, self.bands[self.rows.rank[bottom]][0]), (lower_x, boxes[bottom].y)]
        return points

    def _pass(self, stop: int) -> list[tuple[int, int]]:
        return [(self.x[stop], y) for y in self.bands[self.rows.rank[stop]]]

    def _lane_points(self, number: int, strand: _Strand, boxes: list[Box]) -> list[tuple[int, int]]:
        tie = self.ties[number]
        target, source = boxes[tie.target], boxes[tie.source]
        path = strand.path
        x, lower_x = self.x[path[0]], self.x[path[-1]]
        if len(path) == 1 and strand.label_at is not None:
            x = lower_x = x - (self.widths[path[0]] // 2 - LOOP)
        top_y = target.y + self.ports[number, False]
        bottom_y = source.y + self.ports[number, True]
        points = [(_side(target, x), top_y), (x, top_y)]
        if len(path) > 1:
            points += self._pass(path[0])[1:]
            for stop in path[1:-1]:
                points += self._pass(stop)
            points += self._pass(path[-1])[:1]
        return [*points, (lower_x, bottom_y), (_side(source, lower_x), bottom_y)]

    def _label(self, number: int, strand: _Strand) -> Box | None:
        if strand.label_at is None:
            return None
        tie = self.ties[number]
        top, bottom = self.bands[self.rows.rank[strand.label_at]]
        x = self.x[strand.label_at] - tie.label // 2
        if tie.source == tie.target:
            x += LOOP
        return Box(x, (top + bottom - LABEL_HEIGHT) // 2, tie.label, LABEL_HEIGHT)

    def _feet(self, boxes: list[Box]) -> dict[tuple[int, bool], int]:
        """Distance from a box's middle to its links, by (tie, at the top of its path).

        All meet in the middle, except where links in both directions share a side of the box: there
        they are ordered by origin.
        """
        sides: dict[tuple[int, bool], list[tuple[int, bool, int]]] = {}
        for number, strand in enumerate(self.strands):
            if not strand.is_lane:
                for box, at_top, towards in (
                    (strand.path[0], True, strand.path[1]),
                    (strand.path[-1], False, strand.path[-2]),
                ):
                    end = (self.x[towards], strand.rises, number)
                    sides.setdefault((box, at_top), []).append(end)
        feet: dict[tuple[int, bool], int] = {}
        for (box, at_top), ends in sides.items():
            if any(rises for _, rises, _ in ends):
                room = boxes[box].width - 20
                step = min(_FOOT, room // max(len(ends) - 1, 1))
                for index, (_, _, number) in enumerate(sorted(ends)):
                    feet[number, at_top] = (2 * index - len(ends) + 1) * step // 2
        return feet


def _make_room_for_labels(ranks: list[int], ties: Sequence[Tie], back: set[int]) -> list[int]:
    gaps = {
        ranks[tie.source] - (number in back)
        for number, tie in enumerate(ties)
        if tie.label and tie.source != tie.target
    }
    return [rank + sum(gap < rank for gap in gaps) for rank in ranks]


def _side(box: Box, x: int) -> int:
    return box.x + box.width if x > box.x else box.x


def _shift(wire: Wire, dx: int) -> Wire:
    label = wire.label._replace(x=wire.label.x + dx) if wire.label else None
    return Wire(tuple((x + dx, y) for x, y in wire.points), label)
