from __future__ import annotations

import string
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milecastle.draw import draw_svg
from milecastle.draw.style import MARKS
from milecastle.model.manifest import END, START, EdgeInfo, Manifest
from tests.unit.draw.shapes import (
    AGENT,
    CHAIN,
    FAN,
    HOSTILE,
    HOSTILE_GRAPH,
    REVIEW,
    manifest,
    manifests,
    path,
)

SVG = "{http://www.w3.org/2000/svg}"
HARMLESS = {"svg", "title", "style", "rect", "g", "path", "text"}


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg.encode())


def groups(root: ET.Element, kind: str) -> list[ET.Element]:
    return [item for item in root.iter(f"{SVG}g") if kind in item.get("class", "").split()]


def title(element: ET.Element) -> str:
    return element.findtext(f"{SVG}title", "")


def shown(element: ET.Element) -> str:
    return element.findtext(f"{SVG}text", "")


def test_nodes_ends_and_edges_are_drawn() -> None:
    root = parsed(draw_svg(CHAIN))
    assert [shown(node) for node in groups(root, "mc-node")] == ["research", "review", "publish"]
    assert [shown(pill) for pill in groups(root, "mc-pill")] == ["start", "end"]
    assert [title(edge) for edge in groups(root, "mc-edge")] == [
        "start \u2192 research",
        "research \u2192 review",
        "review \u2192 publish",
        "publish \u2192 end",
    ]


def test_conditional_edges_are_dashed_and_carry_their_label() -> None:
    root = parsed(draw_svg(AGENT))
    assert [title(edge) for edge in groups(root, "mc-maybe")] == [
        "agent \u2192 tools: route",
        "agent \u2192 end: route",
    ]
    assert [shown(label) for label in groups(root, "mc-label")] == ["route", "route"]


def test_edges_between_the_same_nodes_share_a_line_and_name_each_reason() -> None:
    edges = [EdgeInfo("a", "b", "when", "x"), EdgeInfo("a", "b", "router", "y")]
    root = parsed(draw_svg(manifest(*edges)))
    assert [shown(label) for label in groups(root, "mc-label")] == ["x | y"]
    assert len(groups(root, "mc-maybe")) == 1
    surely = parsed(draw_svg(manifest(*edges, EdgeInfo("a", "b"))))
    assert not groups(surely, "mc-maybe")


def test_the_picture_can_be_read_aloud() -> None:
    root = parsed(draw_svg(CHAIN, title='Press & "print"'))
    assert root.get("role") == "img"
    assert root.get("aria-label") == title(root) == 'Graph Press & "print"'
    assert root.findtext(f"{SVG}text[@class='mc-heading']") == 'Press & "print"'


def test_marks_colour_nodes_and_are_said_in_words() -> None:
    root = parsed(draw_svg(REVIEW, marks={"write": "done", "review": "active", "gone": "failed"}))
    assert [title(node) for node in groups(root, "mc-done")] == ["write (done)"]
    assert [title(node) for node in groups(root, "mc-active")] == ["review (active)"]
    assert not groups(root, "mc-failed")


@pytest.mark.parametrize("mark", MARKS)
def test_each_mark_has_a_colour_in_light_and_in_dark(mark: str) -> None:
    style = parsed(draw_svg(CHAIN)).findtext(f"{SVG}style", "")
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    assert f".mc-node.mc-{mark} rect" in light
    assert f".mc-node.mc-{mark} rect" in dark


def test_an_unknown_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="no such mark: evil"):
        draw_svg(CHAIN, marks={"review": "evil"})


def test_hostile_names_stay_text() -> None:
    root = parsed(draw_svg(HOSTILE_GRAPH, title=HOSTILE[0]))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == HARMLESS
    names = [title(node) for node in groups(root, "mc-node")]
    assert names[:5] == list(HOSTILE[:5])
    assert names[5] == "a\ufffdb\ufffd c\ufffdd\ufffde\ufffd"


def test_long_name_is_shortened_and_is_in_full_in_its_title() -> None:
    name = "an_" + "x" * 80 + "_end"
    (node,) = groups(parsed(draw_svg(manifest(*path(START, name, END)))), "mc-node")
    assert title(node) == name
    assert shown(node).startswith("an_xxx")
    assert shown(node).endswith("\u2026xxxxx_end")
    assert len(shown(node)) == 28


def test_nothing_is_fetched_and_nothing_is_run() -> None:
    svg = draw_svg(HOSTILE_GRAPH)
    assert svg.count("http") == 1  # the namespace
    for word in ("href", "url(", "@import", "onload", " id="):
        assert word not in svg


def test_a_graph_without_edges_or_nodes_can_be_drawn() -> None:
    assert len(groups(parsed(draw_svg(manifest(names="alone"))), "mc-node")) == 1
    assert parsed(draw_svg(Manifest((), (), ()))).get("width") == "48"


@pytest.mark.parametrize("graph", [CHAIN, AGENT, REVIEW, FAN, HOSTILE_GRAPH])
def test_the_same_manifest_gives_the_same_bytes(graph: Manifest) -> None:
    again = Manifest.from_bytes(graph.to_bytes()) if graph is not HOSTILE_GRAPH else graph
    assert draw_svg(graph) == draw_svg(again)


@given(manifests(most=12, names=st.text(max_size=12)))
@settings(max_examples=60, deadline=None)
def test_any_name_gives_well_formed_xml_with_whole_coordinates(graph: Manifest) -> None:
    root = parsed(draw_svg(graph, title=graph.nodes[0].name))
    assert len(groups(root, "mc-node")) == len(graph.nodes)
    for element in root.iter(f"{SVG}path"):
        assert set(element.get("d", "")) <= {*string.digits, *"MLCQZ -"}
