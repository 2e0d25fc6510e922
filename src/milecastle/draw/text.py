"""A graph as text for a terminal, without colour.

A graph going straight on is a column of boxes, with its other links noted beside them. Any other
graph is an outline: each node with the links leaving it, in reading order.
"""

from __future__ import annotations

from itertools import pairwise

from milecastle.draw.lettering import cells, clean, shorten
from milecastle.draw.ranking import assign_ranks, find_back_links
from milecastle.draw.sketch import Link, Notes, Sketch, sketch
from milecastle.model.manifest import END, START, Manifest

_LONGEST_NAME, _LONGEST_LABEL = 40, 32
_MOST_SOURCES = 5


def draw_text(manifest: Manifest, *, title: str = "", notes: Notes | None = None) -> str:
    """Draw the graph as text: boxes where it is a column, otherwise an outline.

    Dotted lines are conditional. An arrow up leads back, an arrow down leads past other nodes.
    Notes on a node are in parentheses.
    """
    drawn = sketch(manifest, notes=notes)
    back = _back_links(drawn)
    column = _column(drawn, back)
    lines = _boxes(drawn, column, back) if column else _outline(drawn, back)
    heading = [clean(title), ""] if title else []
    return "\n".join([*heading, *(line.rstrip() for line in lines), ""])


def _back_links(drawn: Sketch) -> set[Link]:
    pairs = [(link.source, link.target) for link in drawn.links]
    strong = [number for number, link in enumerate(drawn.links) if link.fixed]
    numbers = find_back_links(len(drawn.names), pairs, strong)
    return {drawn.links[number] for number in numbers}


def _column(drawn: Sketch, back: set[Link]) -> list[int]:
    count = len(drawn.names)
    down = [(link.source, link.target) for link in drawn.links if link not in back]
    ranks = assign_ranks(count, down, drawn.first, drawn.last)
    return sorted(range(count), key=ranks.__getitem__) if len(set(ranks)) == count else []


def _boxes(drawn: Sketch, column: list[int], back: set[Link]) -> list[str]:
    steps = set(pairwise(column))
    joins = {link.target: link for link in drawn.links if (link.source, link.target) in steps}
    leaving = {link.source: link for link in joins.values()}
    middle = max(_inner(drawn, node) for node in column) // 2 + 1
    lines: list[str] = []
    for place, node in enumerate(column):
        arrival = joins.get(node)
        if arrival:
            lines.append(" " * middle + ("│" if arrival.fixed else "┆") + _label(arrival))
        elif place:
            lines.append("")
        aside = [
            _note(drawn, link, back)
            for link in drawn.links
            if link.source == node and (link.source, link.target) not in steps
        ]
        note = "  " + ", ".join(aside) if aside else ""
        lines += _box(drawn, node, middle, note, arrives=bool(arrival), leaves=node in leaving)
    return lines


def _box(
    drawn: Sketch, node: int, middle: int, note: str, *, arrives: bool, leaves: bool
) -> list[str]:
    name = _noted_name(drawn, node)
    if drawn.names[node] in (START, END):
        arrow = [" " * middle + "▼"] if arrives else []
        return [*arrow, " " * (middle - cells(name) // 2) + name + note]
    inner = _inner(drawn, node)
    half = inner // 2
    left = (inner - cells(name)) // 2
    indent = " " * (middle - half - 1)
    bar = "─" * half
    right = " " * (inner - cells(name) - left)
    return [
        f"{indent}┌{bar}{'▼' if arrives else '─'}{bar}┐",
        f"{indent}│{' ' * left}{name}{right}│{note}",
        f"{indent}└{bar}{'┬' if leaves else '─'}{bar}┘",
    ]


def _inner(drawn: Sketch, node: int) -> int:
    return (cells(_noted_name(drawn, node)) + 2) | 1


def _outline(drawn: Sketch, back: set[Link]) -> list[str]:
    lines: list[str] = []
    for node in _reading_order(drawn, back):
        name = _noted_name(drawn, node)
        sources = [link.source for link in drawn.links if link.target == node != link.source]
        leaving = [link for link in drawn.links if link.source == node]
        if len(sources) > 1:
            more = len(sources) - _MOST_SOURCES
            shown = sources[:_MOST_SOURCES] if more > 1 else sources
            listed = [*(_name(drawn, one) for one in shown), *([f"{more} more"] * (more > 1))]
            lines.append(f"{name} ◀ {', '.join(listed)}")
        elif len(leaving) == 1:
            lines.append(f"{name} {_arrow(drawn, leaving[0], back)}")
            continue
        elif leaving or not sources:
            lines.append(name)
        for link in leaving:
            branch = "└" if link is leaving[-1] else "├"
            lines.append(branch + _arrow(drawn, link, back))
    return lines


def _arrow(drawn: Sketch, link: Link, back: set[Link]) -> str:
    line = "─▶" if link.fixed else "┄▶"
    mark = f" {_mark(link)}" if link in back else ""
    return f"{line} {_name(drawn, link.target)}{mark}{_label(link)}"


def _reading_order(drawn: Sketch, back: set[Link]) -> list[int]:
    below: list[list[int]] = [[] for _ in drawn.names]
    for link in drawn.links:
        if link not in back:
            below[link.source].append(link.target)
    seen: set[int] = set()
    finished: list[int] = []
    for root in reversed(range(len(below))):
        stack = [(root, iter(reversed(below[root])))] if root not in seen else []
        seen.add(root)
        while stack:
            node, targets = stack[-1]
            target = next((other for other in targets if other not in seen), None)
            if target is None:
                finished.append(node)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(reversed(below[target]))))
    return finished[::-1]


def _note(drawn: Sketch, link: Link, back: set[Link]) -> str:
    arrow = _mark(link) if link in back else "↓"
    name = "" if link.source == link.target else f" {_name(drawn, link.target)}"
    return f"{arrow}{name}{_label(link)}"


def _mark(link: Link) -> str:
    return "↺" if link.source == link.target else "↑"


def _label(link: Link) -> str:
    return f" [{shorten(clean(link.label), _LONGEST_LABEL)}]" if link.label else ""


def _noted_name(drawn: Sketch, node: int) -> str:
    noted = ", ".join(drawn.noted(node))
    return f"{_name(drawn, node)} ({noted})" if noted else _name(drawn, node)


def _name(drawn: Sketch, node: int) -> str:
    return shorten(clean(drawn.caption(node)), _LONGEST_NAME)
