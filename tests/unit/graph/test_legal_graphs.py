"""Legal graphs compile, whatever their shape, names or size."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milecastle import END, START, DefinitionError, StateGraph, append
from milecastle.graph.structure import CompiledGraph
from tests.unit.graph.checking import compiled, problems


class State(TypedDict):
    n: int
    log: Annotated[list[str], append]


def logs(state: State) -> Any:
    return {"log": ["x"]}


def counts(state: State) -> Any:
    return {"n": 1}


def holds(state: State) -> bool:
    return True


def anything(state: State) -> Any:
    return str(state)


NAMES = st.text(min_size=1, max_size=12).filter(
    lambda name: name not in (START, END) and name.isprintable()
) | st.sampled_from(["it's", '"quoted"', "two\nlines", "a -> b", "{x}", "名前", "%s", "\x00"])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[StateGraph[State], list[str]]:
    """A tree from START whose every node may end, and more edges of every kind on top."""
    names = draw(st.lists(NAMES, min_size=1, max_size=12, unique=True))
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, logs)
    routed: dict[str, list[str]] = {}
    for index, name in enumerate(names):
        before = draw(st.sampled_from([START, *names[:index]]))
        more = draw(st.lists(st.sampled_from([START, *names]), max_size=2))
        for source in dict.fromkeys([before, *more]):
            routed.setdefault(source, []).append(name)
    for source, targets in routed.items():
        kind = draw(st.sampled_from(["fixed", "when", "router"]))
        if kind == "router":
            graph.add_conditional_edges(source, anything, [*targets, END])
            continue
        for target in targets:
            graph.add_edge(source, target, holds if kind == "when" else None)
    for name in names:
        graph.add_edge(name, END)
    return graph, names


@given(graphs())
def test_a_legal_graph_compiles(made: tuple[StateGraph[State], list[str]]) -> None:
    graph, names = made
    found = compiled(graph)
    assert list(found.nodes) == names
    assert [node.name for node in found.manifest.nodes] == names
    assert type(found.manifest).from_bytes(found.manifest.to_bytes()) == found.manifest
    for name in (START, *names):
        exits = found.exits[name]
        ways = [*exits.fixed, *(branch.target for branch in exits.branches)]
        ways += [target for router in exits.routers for target in router.targets.values()]
        listed = [edge.target for edge in found.manifest.edges if edge.source == name]
        assert sorted(set(ways)) == sorted(set(listed))


SIZE = 2_000
SECONDS = 20


def many(function: Callable[..., Any], size: int = SIZE) -> tuple[StateGraph[State], list[str]]:
    graph = StateGraph(State)
    names = [f"node_{number}" for number in range(size)]
    for name in names:
        graph.add_node(name, function)
    return graph, names


def a_chain() -> StateGraph[State]:
    graph, names = many(counts)
    graph.add_edges(START, *names, END)
    return graph


def a_fan() -> StateGraph[State]:
    graph, names = many(logs)
    for name in names:
        graph.add_edges(START, name, END)
    return graph


def two_long_arms() -> StateGraph[State]:
    graph, names = many(logs)
    graph.add_node("one", counts)
    graph.add_node("other", counts)
    graph.add_edges(START, *names[::2], "one", "other", END)
    graph.add_edges(START, *names[1::2], "one")
    return graph


def one_hub() -> StateGraph[State]:
    graph, names = many(counts)
    graph.add_edge(START, names[0])
    graph.add_conditional_edges(names[0], anything, [*names[1:], END])
    for name in names[1:]:
        graph.add_edge(name, names[0])
    return graph


def loops_side_by_side() -> StateGraph[State]:
    graph, names = many(logs)
    graph.add_node("writer", counts)
    for arm in (names[::2], names[1::2]):
        graph.add_edges(START, *arm)
        graph.add_edge(arm[-1], arm[0], holds)
        graph.add_edge(arm[-1], arm[1], holds)
        graph.add_edge(arm[-1], "writer")
    graph.add_edge("writer", END)
    return graph


@pytest.mark.parametrize("make", [a_chain, a_fan, two_long_arms, one_hub, loops_side_by_side])
def test_a_graph_of_two_thousand_nodes_compiles_at_once(
    make: Callable[[], StateGraph[State]],
) -> None:
    start = time.process_time()
    found = compiled(make())
    assert len(found.nodes) >= SIZE
    assert time.process_time() - start < SECONDS


def test_a_wide_fan_of_writers_is_reported_at_once() -> None:
    graph, names = many(counts)
    for name in names:
        graph.add_edges(START, name, END)
    start = time.process_time()
    (problem,) = problems(graph)
    assert f"and {SIZE - 4} more, and all write 'n'" in problem.message
    assert time.process_time() - start < SECONDS


def test_loops_of_parallel_writers_are_reported_at_once() -> None:
    graph, names = many(counts, SIZE // 2)
    for arm in (names[: SIZE // 4], names[SIZE // 4 :]):
        graph.add_edge(START, arm[0])
        graph.add_edge(arm[-1], END)
        for one, other in pairwise(arm):
            graph.add_edge(one, other, holds)
            graph.add_edge(one, arm[0])
    start = time.process_time()
    assert {problem.code for problem in problems(graph)} == {"MC116"}
    assert time.process_time() - start < SECONDS


def test_many_mistakes_are_reported_at_once() -> None:
    graph, names = many(counts)
    graph.add_edges(START, *names, END)
    for name in names:
        graph.add_edge(name, f"{name}_misspelt")
    start = time.process_time()
    with pytest.raises(DefinitionError) as caught:
        graph.compile()
    assert sum(problem.code == "MC110" for problem in caught.value.problems) == SIZE
    assert time.process_time() - start < SECONDS


def test_a_graph_may_end_where_it_starts() -> None:
    graph = StateGraph(State)
    graph.add_edge(START, END)
    found: CompiledGraph = compiled(graph)
    assert (dict(found.nodes), found.exits[START].fixed) == ({}, (END,))
