from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from milecastle.draw import draw_mermaid
from milecastle.model.manifest import END, START, EdgeInfo, Manifest
from tests.unit.draw.shapes import AGENT, HOSTILE_GRAPH, manifest, manifests, path

LINE = re.compile(
    r'flowchart TD|    n\d+(\["[^"]*"\]|\(\["[^"]*"\]\))|    n\d+ (-->|-\.->)(\|"[^"]*"\|)? n\d+'
)
# What is left of a text once letters, digits, spaces, codes and marks inside words are gone.
PLAIN = re.compile(r"#\d+;|[A-Za-z0-9 ]|(?<=[A-Za-z0-9])[_.-](?=[A-Za-z0-9])|[^\x00-\x7f]")


def test_an_agent_with_tools() -> None:
    assert draw_mermaid(AGENT) == (
        "flowchart TD\n"
        '    n0(["start"])\n'
        '    n1["agent"]\n'
        '    n2["tools"]\n'
        '    n3(["end"])\n'
        "    n0 --> n1\n"
        '    n1 -.->|"route"| n2\n'
        '    n1 -.->|"route"| n3\n'
        "    n2 --> n1\n"
    )


def test_parallel_edges_are_all_drawn_and_twins_once() -> None:
    edges = [EdgeInfo("a", "b"), EdgeInfo("a", "b", "when", "x"), EdgeInfo("a", "b")]
    assert draw_mermaid(manifest(*edges)).splitlines()[3:] == [
        "    n0 --> n1",
        '    n0 -.->|"x"| n1',
    ]


def test_a_title_is_a_quoted_line_of_the_front_matter() -> None:
    text = draw_mermaid(manifest(names="a"), title='a "b"\n---\n%%{x}%% caf\u00e9')
    assert text.splitlines()[:3] == [
        "---",
        'title: "a \\x22b\\x22 \\x2d\\x2d\\x2d \\x25\\x25\\x7bx\\x7d\\x25\\x25 caf\u00e9"',
        "---",
    ]


def test_signs_become_codes_except_inside_a_word() -> None:
    text = draw_mermaid(manifest(*path(START, "load_data-v1.2", '_x_ "1. <b>"', END)))
    assert '["load_data-v1.2"]' in text
    assert '["#95;x#95; #34;1#46; #60;b#62;#34;"]' in text


def test_a_node_without_a_name_has_a_label() -> None:
    assert '    n1[" "]' in draw_mermaid(manifest(EdgeInfo("a", "")))


def test_hostile_names_stay_inside_their_quotes() -> None:
    assert all(LINE.fullmatch(line) for line in draw_mermaid(HOSTILE_GRAPH).splitlines())


@given(manifests(most=8, names=st.text(max_size=12)))
def test_no_name_becomes_syntax(graph: Manifest) -> None:
    for line in draw_mermaid(graph).split("\n")[:-1]:
        assert LINE.fullmatch(line)
        for text in re.findall(r'"([^"]*)"', line):
            assert not PLAIN.sub("", text)
