"""A graph as SVG: one self-contained picture for light and dark, without scripts or fonts.

Rules:

- No ids and no bare class names, so several drawings can be on one page.
- Names are escaped; shortened ones are in full in a ``<title>``.
- Plain rules that simple renderers know: no CSS variables, no ``dominant-baseline``, no markers.
  Rules only browsers know are inside ``@media``, which the others skip.
"""

from __future__ import annotations

from collections.abc import Mapping

from milecastle.draw.layout import arrange
from milecastle.draw.lettering import clean, pixels, shorten
from milecastle.draw.shapes import Box, Layout, Tie, Wire
from milecastle.draw.sketch import AFTER, BEFORE, FAN_OUT, SUBGRAPH, Link, Notes, Sketch, sketch
from milecastle.draw.style import STYLE, known_marks
from milecastle.model.manifest import END, START, Manifest

_MARGIN = 24
_TITLE = 34
_NAME, _LABEL, _HEADING, _NOTE = 13, 11, 15, 10
_LONGEST_NAME, _LONGEST_LABEL = 28, 24
_ROUND = 10


def draw_svg(
    manifest: Manifest,
    *,
    title: str = "",
    marks: Mapping[str, str] | None = None,
    visits: Mapping[str, int] | None = None,
    notes: Notes | None = None,
) -> str:
    marks = known_marks(marks)
    drawn = sketch(manifest, visits, notes)
    ties: list[Tie] = []
    for link in drawn.links:
        text = _short_label(link)
        width = (pixels(text, _LABEL) + 13) // 2 * 2 if text else 0
        ties.append(Tie(link.source, link.target, width, link.fixed))
    sizes = [_size(drawn, index) for index in range(len(drawn.names))]
    layout = arrange(sizes, ties, first=drawn.first, last=drawn.last)
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
    noted = _note_of(drawn, index)
    width = max(pixels(text, _NAME), pixels(noted, _NOTE))
    return max(72, (width + 29) // 2 * 2), 48 if noted else 38


def _note_of(drawn: Sketch, index: int) -> str:
    return " \u00b7 ".join(drawn.noted(index))


def _is_pill(drawn: Sketch, index: int) -> bool:
    return drawn.names[index] in (START, END)


def _short_label(link: Link) -> str:
    return shorten(clean(link.label), _LONGEST_LABEL)


def _node(drawn: Sketch, index: int, box: Box, marks: Mapping[str, str]) -> str:
    name = clean(drawn.counted(index))
    mark = marks.get(drawn.names[index])
    kind = "mc-pill" if _is_pill(drawn, index) else "mc-node"
    classes = f"{kind} mc-{mark}" if mark else kind
    radius = box.height // 2 if _is_pill(drawn, index) else 9
    x, y = box.middle
    noted = drawn.noted(index)
    said = ", ".join([*([mark] if mark else []), *noted])
    parts = [f"<title>{_escape(f'{name} ({said})' if said else name)}</title>"]
    if FAN_OUT in noted:
        parts += [_frame(box, 6, 6, radius), _frame(box, 3, 3, radius)]
    parts.append(_frame(box, 0, 0, radius))
    if SUBGRAPH in noted:
        inner = Box(box.x + 3, box.y + 3, box.width - 6, box.height - 6)
        parts.append(_frame(inner, 0, 0, radius - 3))
    name_y = y - 7 if noted else y
    parts.append(_text("", x, name_y, shorten(name, _LONGEST_NAME)))
    if noted:
        parts.append(_text("mc-note", x, y + 11, _note_of(drawn, index)))
    if BEFORE in noted:
        parts.append(_pause(box.x, box.y))
    if AFTER in noted:
        parts.append(_pause(box.x + box.width, box.y + box.height))
    return f'<g class="{classes}">{"".join(parts)}</g>'


def _frame(box: Box, dx: int, dy: int, radius: int) -> str:
    place = f'x="{box.x + dx}" y="{box.y + dy}" width="{box.width}" height="{box.height}"'
    return f'<rect {place} rx="{radius}"/>'


def _text(kind: str, x: int, y: int, text: str) -> str:
    kind = f'class="{kind}" ' if kind else ""
    return f'<text {kind}x="{x}" y="{y}" dy=".35em">{_escape(text)}</text>'


def _pause(x: int, y: int) -> str:
    bars = f"M{x - 2} {y - 3}L{x - 2} {y + 3}M{x + 2} {y - 3}L{x + 2} {y + 3}"
    return f'<g class="mc-pause"><circle cx="{x}" cy="{y}" r="8"/><path d="{bars}"/></g>'


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
    title = f"<title>{_escape(clean(link.label))}</title>"
    text = _text("", x, y, _short_label(link))
    return f'<g class="mc-label">{title}{_frame(box, 0, 0, 5)}{text}</g>'


def _direction(start: tuple[int, int], end: tuple[int, int]) -> tuple[int, int]:
    (x, y), (to_x, to_y) = start, end
    if y == to_y:
        return (1 if to_x > x else -1), 0
    return 0, (1 if to_y > y else -1)


def _path(points: list[tuple[int, int]]) -> str:
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
