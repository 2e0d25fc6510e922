"""Graphs as file runs see them: order, layers, who makes what, and what does not go together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from milecastle import END, START, StateGraph
from milecastle.builds import FileRun, Workspace, files
from milecastle.builds.file_graph import FileGraph, read_file_graph
from milecastle.builds.nodes import Cache, as_paths
from milecastle.errors import InvalidRequest
from tests.unit.builds.building import Job

Nodes = dict[str, tuple[list[str], list[str]]]


def make(nodes: Nodes, *edges: tuple[str, str]) -> StateGraph[Job]:
    graph = StateGraph(Job, name="g")
    for name, (inputs, outputs) in nodes.items():
        graph.add_node(name, files(inputs=inputs, outputs=outputs)(lambda: None))
    for source, target in edges:
        graph.add_edge(source, target)
    return graph


def read(graph: StateGraph[Job], tmp_path: Path) -> FileGraph:
    return read_file_graph(graph.compile().graph, tmp_path, tmp_path / ".ws")


def problems(graph: StateGraph[Job], tmp_path: Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read(graph, tmp_path)
    return caught.value.message


DIAMOND = [(START, "a"), ("a", "b"), ("a", "d"), ("b", "c"), ("c", "d"), ("d", END)]


def test_a_node_comes_after_everything_that_it_builds_on(tmp_path: Path) -> None:
    graph = make({name: ([], []) for name in "dcba"}, *DIAMOND)
    found = read(graph, tmp_path)
    assert found.layers == (("a",), ("b",), ("c",), ("d",))
    assert found.before["d"] == ("a", "c")
    assert found.ancestors(("d",)) == {"a", "b", "c"}


def test_a_node_runs_once_however_many_ways_lead_to_it(tmp_path: Path) -> None:
    calls: list[str] = []
    graph = StateGraph(Job, name="g")
    for name in "abcd":
        graph.add_node(name, files(version="1")(partial(calls.append, name)))
    for source, target in DIAMOND:
        graph.add_edge(source, target)
    FileRun(graph.compile(), Workspace(tmp_path / ".ws")).run()
    assert calls == ["a", "b", "c", "d"]


def test_inputs_that_a_node_makes_are_upstream_however_far(tmp_path: Path) -> None:
    nodes: Nodes = {"a": ([], ["x", "dir"]), "b": ([], []), "c": (["x", "dir/f", "own"], [])}
    found = read(make(nodes, (START, "a"), ("a", "b"), ("b", "c"), ("c", END)), tmp_path)
    assert found.makers["c"] == {"x": "a", "dir/f": "a"}
    assert found.upstream["c"] == ("b", "a")


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("../x", "is outside the root"),
        ("a/../../x", "is outside the root"),
        ("/tmp/x", "is outside the root"),
        (".", "is the root itself"),
        ("a/..", "is the root itself"),
        (".ws", "is inside the workspace"),
        (".ws/cache/x", "is inside the workspace"),
    ],
)
def test_output_is_inside_the_root_and_outside_the_workspace(
    tmp_path: Path, output: str, why: str
) -> None:
    graph = make({"a": ([], [output])}, (START, "a"), ("a", END))
    assert f"the output '{output}' of node 'a' {why}" in problems(graph, tmp_path)


def test_an_output_that_holds_the_workspace_is_refused(tmp_path: Path) -> None:
    graph = make({"a": ([], ["deep"])}, (START, "a"), ("a", END)).compile().graph
    with pytest.raises(InvalidRequest, match="is inside the workspace, or contains it"):
        read_file_graph(graph, tmp_path, tmp_path / "deep" / ".ws")


def test_a_workspace_elsewhere_is_in_nobodys_way(tmp_path: Path) -> None:
    graph = make({"a": ([], ["deep"])}, (START, "a"), ("a", END)).compile().graph
    assert read_file_graph(graph, tmp_path / "root", tmp_path / "ws").layers == (("a",),)


def test_two_nodes_that_make_the_same_are_refused(tmp_path: Path) -> None:
    nodes: Nodes = {"a": ([], ["x"]), "b": ([], ["./x"])}
    graph = make(nodes, (START, "a"), ("a", "b"), ("b", END))
    assert "nodes 'a' and 'b' both create './x'" in problems(graph, tmp_path)


def test_an_output_inside_of_anothers_is_refused(tmp_path: Path) -> None:
    nodes: Nodes = {"a": ([], ["d"]), "b": ([], ["d/x/y"])}
    graph = make(nodes, (START, "a"), ("a", "b"), ("b", END))
    assert "the output 'd/x/y' of node 'b' is inside 'd' of node 'a'" in problems(graph, tmp_path)


def test_an_input_that_is_made_elsewhere_needs_a_way(tmp_path: Path) -> None:
    nodes: Nodes = {"a": ([], ["x"]), "b": (["x"], [])}
    graph = make(nodes, (START, "a"), (START, "b"), ("a", END), ("b", END))
    assert "no path leads from 'a' to 'b': add an edge" in problems(graph, tmp_path)


def test_a_node_does_not_read_what_it_makes(tmp_path: Path) -> None:
    graph = make({"a": (["d/x"], ["d"])}, (START, "a"), ("a", END))
    assert "node 'a' both reads and creates 'd/x'" in problems(graph, tmp_path)


def test_loops_routers_and_interrupts_are_refused_all_at_once(tmp_path: Path) -> None:
    graph = make({name: ([], []) for name in "abc"}, (START, "a"), ("a", "b"), ("b", "a"))
    graph.add_conditional_edges("a", lambda state: "c", ["c"])
    graph.add_edge("c", END)
    app = graph.compile(interrupt_before=["c"])
    with pytest.raises(InvalidRequest) as caught:
        read_file_graph(app.graph, tmp_path, tmp_path / ".ws")
    for words in ("'a', 'b', 'c' are in a loop", "node 'a' chooses", "it has interrupts"):
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("given", "expected"),
    [("x", ("x",)), (Path("a/b"), ("a/b",)), (["x", "y", "x"], ("x", "y")), ("a\\b", ("a/b",))],
)
def test_paths_are_given_alone_or_together(given: Any, expected: tuple[str, ...]) -> None:
    assert as_paths(given) == expected


@pytest.mark.parametrize("given", ["", "a\0b", [""]])
def test_what_is_not_a_path_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="must not be empty or contain NUL"):
        as_paths(given)


def test_a_time_to_live_is_positive() -> None:
    with pytest.raises(ValueError, match="ttl= must be positive"):
        Cache(ttl=0)
