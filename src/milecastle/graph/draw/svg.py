"""A graph as SVG: one self-contained picture for light and dark, without scripts or fonts.

Rules:

- No ids and no bare class names, so that several drawings can stand on one page.
- Names are escaped; what had to be shortened stands in full in a ``<title>``.
- Colours are plain rules and not CSS variables, which not every viewer knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from milecastle.graph.draw.layout import Box, Layout, Tie, Wire, arrange
from milecastle.graph.draw.lettering import clean, pixels, shorten
from milecastle.graph.draw.sketch import Link, Sketch, sketch
from milecastle.graph.draw.style import MARKS, STYLE, known_marks
from milecastle.model.manifest import END, START, Manifest

__all__ = ["MARKS", "draw_svg"]

_MARGIN = 24
_TITLE = 34
_NAME, _LABEL, _HEADING = 13, 11, 15
_LONGEST_NAME, _LONGEST_LABEL = 28, 24
_ROUND = 10


def draw_svg(
    manifest: Manifest,
    *,
    title: str = "",
    marks: Mapping[str, str] | None = None,
    visits: Mapping[str, int] | None = None,
) -> str:
    """Draw the graph as an SVG document.

    ``marks`` gives nodes one of the classes in ``MARKS`` and so a colour, ``visits`` a count;
    names that the graph does not have are passed over, for a path may come from an older graph.
    """
    marks = known_marks(marks)
    drawn = sketch(manifest, visits)
    layout = arrange(
        [_size(drawn, index) for index in range(len(drawn.names))],
        [Tie(link.source, link.target, _label_width(link), link.fixed) for link in drawn.links],
        first=drawn.first,
        last=drawn.last,
    )
    wires = [_wire(drawn, *pair) for pair in zip(drawn.links, layout.wires, strict=True)]
    labels = [_label(*pair) for pair in zip(drawn.links, layout.wires, strict=True)]
    nodes = [_node(drawn, index, box, marks) for index, box in enumerate(layout.boxes)]
    return _document(title, layout, [*wires, *filter(None, labels), *nodes])


def _document(title: str, layout: Layout, parts: list[str]) -> str:
    title = clean(title)
    heading = _escape(shorten(title, 60))
    top = _MARGIN + (_TITLE if title else 0)
    width = max(layout.width, pixels(shorten(title, 60), _HEADING)) + 2 * _MARGIN
    height = layout.height + top + _MARGIN
    left = (width - layout.width) // 2
    name = _escape(f"Graph {title}".strip())
    size = f'width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}"',
        f'class="milecastle" role="img" aria-label="{name}">',
        f"<title>{name}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="mc-paper" {size} rx="12"/>',
    ]
    if title:
        lines.append(f'<text class="mc-heading" x="{_MARGIN}" y="{_MARGIN + 12}">{heading}</text>')
    lines.append(f'<g transform="translate({left} {top})">')
    return "\n".join([*lines, *parts, "</g>", "</svg>", ""])


def _size(drawn: Sketch, index: int) -> tuple[int, int]:
    text = shorten(clean(drawn.counted(index)), _LONGEST_NAME)
    if _is_pill(drawn, index):
        return 64, 26
    return max(72, (pixels(text, _NAME) + 29) // 2 * 2), 38


def _is_pill(drawn: Sketch, index: int) -> bool:
    return drawn.names[index] in (START, END)


def _label_width(link: Link) -> int:
    text = _short_label(link)
    return (pixels(text, _LABEL) + 13) // 2 * 2 if text else 0


def _short_label(link: Link) -> str:
    return shorten(clean(link.label), _LONGEST_LABEL)


def _node(drawn: Sketch, index: int, box: Box, marks: Mapping[str, str]) -> str:
    name = clean(drawn.counted(index))
    mark = marks.get(drawn.names[index])
    kind = "mc-pill" if _is_pill(drawn, index) else "mc-node"
    classes = f"{kind} mc-{mark}" if mark else kind
    radius = box.height // 2 if _is_pill(drawn, index) else 9
    x, y = box.middle
    return (
        f'<g class="{classes}"><title>{_escape(f"{name} ({mark})" if mark else name)}</title>'
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="{radius}"/>'
        f'<text x="{x}" y="{y}" dy=".35em">{_escape(shorten(name, _LONGEST_NAME))}</text></g>'
    )


def _wire(drawn: Sketch, link: Link, wire: Wire) -> str:
    ends = f"{drawn.caption(link.source)} \u2192 {drawn.caption(link.target)}"
    name = clean(f"{ends}: {link.label}" if link.label else ends)
    kind = "mc-edge" if link.fixed else "mc-edge mc-maybe"
    *body, (x, y) = wire.points
    dx, dy = _direction(body[-1], (x, y))
    line = _path([*body, (x - 6 * dx, y - 6 * dy)])
    wing_x, wing_y = x - 8 * dx, y - 8 * dy
    head = f"M{x} {y}L{wing_x + 4 * dy} {wing_y + 4 * dx}L{wing_x - 4 * dy} {wing_y - 4 * dx}Z"
    return (
        f'<g class="{kind}"><title>{_escape(name)}</title>'
        f'<path d="{line}"/><path class="mc-head" d="{head}"/></g>'
    )


def _label(link: Link, wire: Wire) -> str:
    if wire.label is None:
        return ""
    box, (x, y) = wire.label, wire.label.middle
    text = _short_label(link)
    title = f"<title>{_escape(clean(link.label))}</title>"
    return (
        f'<g class="mc-label">{title}<rect x="{box.x}" y="{box.y}" width="{box.width}" '
        f'height="{box.height}" rx="5"/><text x="{x}" y="{y}" dy=".35em">{_escape(text)}</text></g>'
    )


def _direction(start: tuple[int, int], end: tuple[int, int]) -> tuple[int, int]:
    """Where the wire points when it arrives: along the last line, or vertically after a curve."""
    (x, y), (to_x, to_y) = start, end
    if y == to_y:
        return (1 if to_x > x else -1), 0
    return 0, (1 if to_y > y else -1)


def _path(points: list[tuple[int, int]]) -> str:
    """Lines, with curves between corners of different rows and round corners at the sides."""
    x, y = points[0]
    parts = [f"M{x} {y}"]
    for index, (to_x, to_y) in enumerate(points[1:], start=1):
        if x != to_x and y != to_y:
            middle = (y + to_y) // 2
            parts.append(f"C{x} {middle} {to_x} {middle} {to_x} {to_y}")
        elif index + 1 < len(points) and (corner := _corner((x, y), *points[index : index + 2])):
            parts.append(corner)
        else:
            parts.append(f"L{to_x} {to_y}")
        x, y = to_x, to_y
    return "".join(parts)


def _corner(before: tuple[int, int], corner: tuple[int, int], after: tuple[int, int]) -> str | None:
    """A round corner where a level line meets an upright one."""
    (x, y), (to_x, to_y) = corner, after
    if (before[1] == y) == (to_y == y) or (to_x != x and to_y != y):
        return None
    turn = min(_ROUND, _length(before, corner) // 2, _length(corner, after) // 2)
    (fx, fy), (tx, ty) = _towards(corner, before, turn), _towards(corner, after, turn)
    return f"L{fx} {fy}Q{x} {y} {tx} {ty}"


def _length(a: tuple[int, int], b: tuple[int, int]) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _towards(start: tuple[int, int], end: tuple[int, int], far: int) -> tuple[int, int]:
    dx, dy = _direction(start, end)
    return start[0] + dx * far, start[1] + dy * far


def _escape(text: str) -> str:
    for char, entity in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ('"', "&quot;"),
        ("'", "&#39;"),
    ):
        text = text.replace(char, entity)
    return text
