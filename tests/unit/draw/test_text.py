from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from milecastle.draw import draw_text
from milecastle.draw.lettering import clean
from milecastle.model.manifest import END, START, EdgeInfo, Manifest
from tests.unit.draw.shapes import (
    AGENT,
    CHAIN,
    FAN,
    HOSTILE_GRAPH,
    REVIEW,
    manifest,
    manifests,
    path,
)


def drawing(text: str) -> str:
    """The picture between the first and the last line of a literal."""
    return text.removeprefix("\n")


def test_a_chain_is_a_column_of_boxes() -> None:
    assert draw_text(CHAIN, title="Press") == drawing("""
Press

    start
      │
┌─────▼─────┐
│ research  │
└─────┬─────┘
      │
 ┌────▼────┐
 │ review  │
 └────┬────┘
      │
 ┌────▼────┐
 │ publish │
 └────┬────┘
      │
      ▼
     end
""")


def test_links_that_leave_the_column_are_noted_beside_it() -> None:
    loop = EdgeInfo("tools", "tools", "when", "busy")
    assert draw_text(manifest(*AGENT.edges, loop)) == drawing("""
  start
    │
┌───▼───┐
│ agent │  ↓ end [route]
└───┬───┘
    ┆ [route]
┌───▼───┐
│ tools │  ↑ agent, ↺ [busy]
└───────┘

   end
""")


def test_branches_and_joins_are_an_outline() -> None:
    assert draw_text(FAN) == drawing("""
start ─▶ split
split
├─▶ a
├─▶ b
├─▶ c
├─▶ d
└─▶ e
a ─▶ join
b ─▶ join
c ─▶ join
d ─▶ join
e ─▶ join
join ◀ a, b, c, d, e
└─▶ end
""")


def test_an_outline_shows_conditions_and_the_way_back() -> None:
    assert draw_text(REVIEW) == drawing("""
start ─▶ write
write ◀ start, fix
└─▶ review
review
├┄▶ publish [approved]
├┄▶ fix [rejected]
└┄▶ review ↺ [undecided]
publish ─▶ end
fix ─▶ write ↑
""")


def test_an_outline_does_not_list_every_source_of_a_large_join() -> None:
    names = [f"w{n}" for n in range(12)]
    edges = [edge for name in names for edge in path(START, name, "join")]
    assert "join ◀ w0, w1, w2, w3, w4, 7 more\n" in draw_text(manifest(*edges))


def test_unreachable_nodes_are_in_the_outline() -> None:
    text = draw_text(manifest(*path(START, "a", END), names="a lost found"))
    assert {"lost", "found"} <= set(text.splitlines())


def test_boxes_hold_wide_characters_and_hostile_names() -> None:
    text = draw_text(manifest(*path(START, "名前", "a\x1b[31m\nb", END)))
    assert "│ 名前  │\n" in text
    assert "│ a\ufffd[31m b  │" in text


def test_an_empty_graph_is_empty_text() -> None:
    assert draw_text(Manifest((), (), ())) == ""


def test_no_line_is_wider_than_it_must_be() -> None:
    lines = draw_text(HOSTILE_GRAPH).splitlines()
    assert max(map(len, lines)) < 100
    assert all(line == line.rstrip() for line in lines)


@given(manifests(most=12, names=st.text(min_size=1, max_size=12)))
@settings(deadline=None)
def test_every_node_is_there_and_no_control_character(graph: Manifest) -> None:
    text = draw_text(graph)
    assert not [char for char in text if char < " " and char != "\n"]
    assert all(clean(node.name).rstrip() in text for node in graph.nodes)
