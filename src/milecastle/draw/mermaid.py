"""A graph as Mermaid text.

Names never become Mermaid syntax: nodes are called n0, n1, ..., and whatever is not a letter, a
digit or a space is written as a character code, save for a mark inside a word.
"""

from __future__ import annotations

from collections.abc import Mapping

from milecastle.draw.lettering import clean
from milecastle.draw.sketch import SUBGRAPH, Notes, Sketch, drawn_edges, sketch
from milecastle.draw.style import fills, known_marks
from milecastle.model.manifest import END, START, EdgeInfo, Manifest


def draw_mermaid(
    manifest: Manifest,
    *,
    title: str = "",
    marks: Mapping[str, str] | None = None,
    visits: Mapping[str, int] | None = None,
    notes: Notes | None = None,
) -> str:
    """Draw the graph as a Mermaid flowchart; conditional edges are dotted.

    ``marks``, ``visits`` and ``notes`` are those of the SVG drawing; a subgraph has a double frame.
    """
    marks = known_marks(marks)
    drawn = sketch(manifest, visits, notes)
    ids = {name: f"n{index}" for index, name in enumerate(drawn.names)}
    lines = ["---", f'title: "{_yaml(title)}"', "---"] if title else []
    lines.append("flowchart TD")
    lines += [f"    {ids[name]}{_box(drawn, index)}" for index, name in enumerate(drawn.names)]
    lines += [f"    {_edge(edge, ids)}" for edge in drawn_edges(manifest)]
    lines += _classes({ids[name]: mark for name, mark in marks.items() if name in ids})
    return "\n".join([*lines, ""])


def _box(drawn: Sketch, index: int) -> str:
    text = _text(drawn.counted(index))
    noted = drawn.noted(index)
    if noted:
        text += "<br/>" + _text(f"({', '.join(noted)})")
    if drawn.names[index] in (START, END):
        return f'(["{text}"])'
    return f'[["{text}"]]' if SUBGRAPH in noted else f'["{text}"]'


def _classes(marks: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for mark, (fill, stroke, ink) in fills().items():
        nodes = [id for id, found in marks.items() if found == mark]
        if nodes:
            lines.append(f"    classDef {mark} fill:{fill},stroke:{stroke},color:{ink}")
            lines.append(f"    class {','.join(nodes)} {mark}")
    return lines


def _edge(edge: EdgeInfo, ids: dict[str, str]) -> str:
    arrow = "-->" if edge.kind == "fixed" else "-.->"
    label = f'|"{_text(edge.label)}"|' if edge.label else ""
    return f"{ids[edge.source]} {arrow}{label} {ids[edge.target]}"


def _text(name: str) -> str:
    name = clean(name) or " "
    return "".join(
        char if _is_plain(name, index) else f"#{ord(char)};" for index, char in enumerate(name)
    )


def _yaml(title: str) -> str:
    title = clean(title)
    return "".join(
        char if _is_plain(title, index) else f"\\x{ord(char):02x}"
        for index, char in enumerate(title)
    )


def _is_plain(name: str, index: int) -> bool:
    char = name[index]
    if char in "_-.":
        around = name[max(index - 1, 0) : index] + name[index + 1 : index + 2]
        return len(around) == 2 and around.isascii() and around.isalnum()
    return not char.isascii() or char.isalnum() or char == " "
