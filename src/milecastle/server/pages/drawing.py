"""A graph's drawing in a page: nodes are links, in the style sheet's colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from milecastle.draw.layout import arrange
from milecastle.draw.lettering import clean, pixels, shorten
from milecastle.draw.shapes import Box, Tie, Wire
from milecastle.draw.sketch import FAN_OUT, Link, Notes, Sketch, sketch
from milecastle.model.manifest import END, START, Manifest

_NAME, _META, _END = 13, 11, 11
_LONGEST, _LONGEST_LABEL, _LONGEST_META = 24, 18, 28
_LEFT: Final = 24
"""Pixels beside a name, for the sign."""
_MARGIN: Final = 8
_MOST: Final = 60

SIGNS: Final[Mapping[str, str]] = {
    "done": "m-3.4 .2 2.4 2.4 4.4-5",
    "ask": "M-2-1.8a2.1 2.1 0 1 1 2.9 2C.2.5 0 .9 0 1.5M0 4v.1",
    "bad": "m-3 -3 6 6m0-6-6 6",
    "run": "M-2.5-3.5v7l5.5-3.5z",
}
"""The sign of a node by its kind."""


class NodeLook(NamedTuple):
    """A drawn node: its kind (a class), one line of facts, and a bar's share."""

    kind: str
    meta: str = ""
    share: float = 0.0


class DrawnNode(NamedTuple):
    box: Box
    name: str
    full: str
    look: NodeLook
    href: str
    is_end: bool
    is_fan_out: bool
    is_current: bool
    sign: str


class DrawnEdge(NamedTuple):
    path: str
    tip: str
    kind: str


class DrawnLabel(NamedTuple):
    box: Box
    text: str


class Drawing(NamedTuple):
    """A drawing in pixels. ``left_out`` if the graph is too large for a page."""

    width: int
    height: int
    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    labels: tuple[DrawnLabel, ...]
    left_out: int = 0


def draw_page(
    manifest: Manifest,
    looks: Mapping[str, NodeLook],
    href: Callable[[str], str],
    *,
    notes: Notes | None = None,
    taken: AbstractSet[tuple[str, str]] = frozenset(),
    current: str = "",
) -> Drawing:
    drawn = sketch(manifest, None, notes)
    if len(drawn.names) > _MOST:
        return Drawing(0, 0, (), (), (), len(drawn.names))
    layout = arrange(
        [_size(drawn, index, looks) for index in range(len(drawn.names))],
        [Tie(link.source, link.target, _label_width(link), link.fixed) for link in drawn.links],
        first=drawn.first,
        last=drawn.last,
    )
    edges = [_edge(drawn, link, wire, taken) for link, wire in _pairs(drawn, layout.wires)]
    labels = [
        DrawnLabel(wire.label, _label(link))
        for link, wire in _pairs(drawn, layout.wires)
        if wire.label is not None
    ]
    nodes: list[DrawnNode] = []
    for index, box in enumerate(layout.boxes):
        name = drawn.names[index]
        look = looks.get(name, NodeLook("faint"))
        nodes.append(
            DrawnNode(
                box=box,
                name=shorten(clean(drawn.caption(index)), _LONGEST),
                full=clean(name),
                look=look._replace(meta=shorten(clean(look.meta), _LONGEST_META)),
                href=href(name),
                is_end=name in (START, END),
                is_fan_out=FAN_OUT in drawn.noted(index),
                is_current=name == current,
                sign=SIGNS.get(look.kind, ""),
            )
        )
    return Drawing(
        layout.width + 2 * _MARGIN,
        layout.height + 2 * _MARGIN,
        tuple(nodes),
        tuple(sorted(edges, key=lambda edge: edge.kind == "way")),
        tuple(labels),
    )


def _pairs(drawn: Sketch, wires: tuple[Wire, ...]) -> list[tuple[Link, Wire]]:
    return list(zip(drawn.links, wires, strict=True))


def _size(drawn: Sketch, index: int, looks: Mapping[str, NodeLook]) -> tuple[int, int]:
    name = drawn.names[index]
    if name in (START, END):
        return 48, 20
    look = looks.get(name, NodeLook("faint"))
    width = pixels(shorten(clean(name), _LONGEST), _NAME)
    meta = pixels(shorten(clean(look.meta), _LONGEST_META), _META)
    return max(92, (max(width, meta) + _LEFT + 21) // 2 * 2), 38 if look.share == 0 else 46


def _label(link: Link) -> str:
    return shorten(clean(link.label), _LONGEST_LABEL)


def _label_width(link: Link) -> int:
    return (pixels(_label(link), _META) + 13) // 2 * 2 if link.label else 0


def _edge(drawn: Sketch, link: Link, wire: Wire, taken: AbstractSet[tuple[str, str]]) -> DrawnEdge:
    is_way = (drawn.names[link.source], drawn.names[link.target]) in taken
    *body, (x, y) = wire.points
    (before_x, before_y) = body[-1]
    dx, dy = ((1 if x > before_x else -1), 0) if before_y == y else (0, 1 if y > before_y else -1)
    back_x, back_y = x - 6.5 * dx, y - 6.5 * dy
    wings = (back_x + 4 * dy, back_y + 4 * dx), (back_x - 4 * dy, back_y - 4 * dx)
    tip = f"M{x} {y}L{wings[0][0]} {wings[0][1]}L{wings[1][0]} {wings[1][1]}z"
    line = _path([*body, (x - 6 * dx, y - 6 * dy)])
    return DrawnEdge(line, tip, "way" if is_way else "" if link.fixed else "maybe")


def _path(points: list[tuple[int, int]]) -> str:
    (x, y), *rest = points
    parts = [f"M{x} {y}"]
    for to_x, to_y in rest:
        if x != to_x and y != to_y:
            middle = (y + to_y) // 2
            parts.append(f"C{x} {middle} {to_x} {middle} {to_x} {to_y}")
        else:
            parts.append(f"L{to_x} {to_y}")
        x, y = to_x, to_y
    return "".join(parts)
