"""Drawings of compiled graphs: what leads where, and what is special about a node."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, TypedDict
from xml.etree import ElementTree as ET

import pytest

from milecastle import END, START, App, Send, StateGraph
from milecastle.draw import draw_mermaid, draw_svg, draw_text
from tests.unit.draw.shapes import manifest, path
from tests.unit.draw.test_svg import SVG, groups, parsed, shown, title


class State(TypedDict):
    n: int
    many: list[int]


class Verdict(Enum):
    GOOD = 1
    BAD = 2


def nothing(state: State) -> None: ...


def chain(*names: str) -> StateGraph[State]:
    graph = StateGraph(State, name="drawn")
    for name in names:
        graph.add_node(name, nothing)
    graph.add_edges(START, *names)
    return graph


def special() -> App[State]:
    """A graph with a node of each kind."""
    graph = chain("plan")
    graph.add_node("child", chain_of_one(), defer=True)
    graph.add_node("work", nothing)
    graph.add_node("sent", nothing)
    graph.add_node("review", nothing)
    graph.map("plan", "work", over="many", item="n")

    def spread(state: State) -> list[Send]:
        return [Send("sent", {"n": n}) for n in state["many"]]

    graph.add_conditional_edges("plan", spread)
    graph.add_edges("work", "child")
    graph.add_edges("sent", "child", "review", END)
    return graph.compile(interrupt_before=["review"], interrupt_after=["review", "child"])


def chain_of_one() -> App[State]:
    graph = chain("one")
    graph.add_edge("one", END)
    return graph.compile()


NOTED = {
    "plan": "",
    "child": "subgraph, deferred, interrupt after",
    "work": "fan-out",
    "sent": "fan-out",
    "review": "interrupt before, interrupt after",
}


def test_svg_says_what_is_special_about_a_node() -> None:
    """Seen to fail with ``notes_of`` returning nothing."""
    root = parsed(special().draw("svg"))
    nodes = {title(node).partition(" ")[0]: node for node in groups(root, "mc-node")}
    assert {name: title(node) for name, node in nodes.items()} == {
        name: f"{name} ({said})" if said else name for name, said in NOTED.items()
    }
    for name, said in NOTED.items():
        below = nodes[name].findtext(f"{SVG}text[@class='mc-note']", "")
        assert below.replace(" \u00b7 ", ", ") == said
    frames = {name: len(node.findall(f"{SVG}rect")) for name, node in nodes.items()}
    assert frames == {"plan": 1, "child": 2, "work": 3, "sent": 3, "review": 1}
    pauses = {name: len(groups(node, "mc-pause")) for name, node in nodes.items()}
    assert pauses == {"plan": 0, "child": 1, "work": 0, "sent": 0, "review": 2}


def test_nothing_of_a_node_is_outside_of_the_picture() -> None:
    root = parsed(special().draw("svg"))
    width, height = int(root.get("width", "")), int(root.get("height", ""))
    (drawing,) = root.findall(f"{SVG}g")
    left, top = map(int, re.findall(r"\d+", drawing.get("transform", "")))
    for rect in drawing.iter(f"{SVG}rect"):
        x, y = int(rect.get("x", "")) + left, int(rect.get("y", "")) + top
        assert 0 <= x <= x + int(rect.get("width", "")) <= width
        assert 0 <= y <= y + int(rect.get("height", "")) <= height
    for circle in drawing.iter(f"{SVG}circle"):
        x, y = int(circle.get("cx", "")) + left, int(circle.get("cy", "")) + top
        assert 8 <= x <= width - 8
        assert 8 <= y <= height - 8


def test_mermaid_says_what_is_special_about_a_node() -> None:
    lines = special().draw("mermaid").splitlines()
    boxes = {
        line.split('"')[1].partition("<br/>")[0]: line.strip() for line in lines if '"' in line
    }
    for name, said in NOTED.items():
        text = boxes[name].split('"')[1]
        coded = f"({said})".replace("(", "#40;").replace(")", "#41;").replace(",", "#44;")
        assert text == (f"{name}<br/>{coded}" if said else name)
    assert boxes["child"].split('"')[0].endswith("[[")
    assert boxes["child"].endswith("]]")
    assert not boxes["work"].endswith("]]")


def test_text_says_what_is_special_about_a_node() -> None:
    lines = special().draw("text").splitlines()
    for name, said in NOTED.items():
        if said:
            assert any(line.startswith(f"{name} ({said})") for line in lines), name
    column = chain("a", "b")
    column.add_edge("b", END)
    assert "\u2502 b (interrupt before)" in column.compile(interrupt_before="b").draw("text")


def route(state: State) -> str:
    return str(state["n"])


def judge(state: State) -> Verdict:
    return Verdict.GOOD


def choose(state: State) -> Literal["a", "b"]:
    return "a"


LABELLED: list[tuple[Callable[[State], Any], Any, list[str]]] = [
    (route, {"ok": "a", "again": "b"}, ["ok", "again"]),
    (lambda state: True, {True: "a", False: "b"}, ["True", "False"]),
    (judge, {Verdict.GOOD: "a", Verdict.BAD: "b"}, ["GOOD", "BAD"]),
    (route, {"ok": "a", "fine": "a", "b": "b"}, ["ok | fine", "route"]),
    (choose, None, ["choose", "choose"]),
    (lambda state: "a", ["a", "b"], []),
]


@pytest.mark.parametrize(("router", "targets", "labels"), LABELLED)
def test_the_keys_of_a_mapping_label_its_edges(
    router: Any, targets: Any, labels: list[str]
) -> None:
    """Seen to fail with the router's name, or ``<lambda>``, at every edge."""
    graph = chain("first")
    for name in "ab":
        graph.add_node(name, nothing)
        graph.add_edge(name, END)
    graph.add_conditional_edges("first", router, targets)
    app = graph.compile()
    root = parsed(app.draw("svg"))
    assert [shown(label) for label in groups(root, "mc-label")] == labels
    mermaid = re.findall(r'\|"([^"]*)"\|', app.draw("mermaid"))
    assert [re.sub(r" #124; ", " | ", label) for label in mermaid] == labels
    assert re.findall(r"\[(.+?)\]", app.draw("text")) == labels


def test_labels_are_not_part_of_the_fingerprint() -> None:
    """A paused thread outlasts another key of the mapping."""
    prints: set[str] = set()
    for word in ("ok", "fine"):
        graph = chain("first")
        graph.add_conditional_edges("first", route, {word: END})
        prints.add(graph.compile().fingerprint)
    assert len(prints) == 1


def test_an_edge_that_is_taken_otherwise_says_so() -> None:
    """Seen to fail: it was drawn as one that is always taken."""
    graph = chain("first")
    for name in "ab":
        graph.add_node(name, nothing)
        graph.add_edge(name, END)
    graph.add_edge("first", "a", when=route)
    graph.add_edge("first", "b")
    app = graph.compile()
    maybe = groups(parsed(app.draw("svg")), "mc-maybe")
    assert [title(edge) for edge in maybe] == [
        "first \u2192 a: route",
        "first \u2192 b: otherwise",
    ]
    assert '-.->|"otherwise"|' in app.draw("mermaid")
    assert "\u2504\u25b6 b [otherwise]" in app.draw("text")


KNOWN = {
    "fill",
    "font",
    "font-size",
    "font-weight",
    "stroke",
    "stroke-dasharray",
    "stroke-linecap",
    "stroke-width",
    "text-anchor",
}
"""The properties that CairoSVG, librsvg and the converters of editors know."""

UNKNOWN = ("var(", "dominant-baseline", "alignment-baseline", "context-stroke", "<marker", "<use")


def rules_outside_of_media(style: str) -> list[tuple[str, str]]:
    """Selectors and declarations that every renderer reads."""
    plain = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^}]*\})*\s*\}", "", style)
    return re.findall(r"([^{}]+)\{([^}]*)\}", plain)


def unknown_properties(svg: str) -> set[str]:
    """What simple renderers would not know, or would take for something else."""
    rules = rules_outside_of_media(parsed(svg).findtext(f"{SVG}style", ""))
    assert len(rules) > 10
    named = {part.partition(":")[0].strip() for _, body in rules for part in body.split(";")}
    return named - KNOWN - {""} | {word for word in UNKNOWN if word in svg}


def test_simple_renderers_know_all_that_is_used() -> None:
    """CairoSVG took ``height:auto`` for 0 and drew nothing.

    Seen to fail with ``height:auto`` outside of ``@media``, as it was.
    """
    assert unknown_properties(special().draw("svg")) == set()


@pytest.mark.parametrize("rule", [".milecastle{height:auto}", ".milecastle{fill:var(--x)}"])
def test_a_rule_that_simple_renderers_do_not_know_is_found(rule: str) -> None:
    svg = special().draw("svg").replace("<style>", f"<style>{rule}")
    assert unknown_properties(svg)


def test_every_class_is_styled_and_every_size_is_given() -> None:
    svg = special().draw("svg")
    root = parsed(svg)
    style = root.findtext(f"{SVG}style", "")
    used = {name for item in root.iter() for name in item.get("class", "").split()}
    assert [name for name in sorted(used) if f".{name}" not in style] == []
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"


def test_notes_of_unknown_nodes_are_skipped_and_notes_are_escaped() -> None:
    graph = manifest(*path(START, "a", END))
    notes = {"gone": ("subgraph",), "a": ("<b>",)}
    root = ET.fromstring(draw_svg(graph, notes=notes))
    assert [title(node) for node in groups(root, "mc-node")] == ["a (<b>)"]
    assert "<b>" not in draw_mermaid(graph, notes=notes)
    assert "a (<b>)" in draw_text(graph, notes=notes)
