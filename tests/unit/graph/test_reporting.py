"""Reporting: every problem at once, in order, each once, and readable."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from milecastle import END, START, DefinitionError, StateGraph
from milecastle.errors import Problem
from tests.unit.graph.checking import function, here, problems


class State(TypedDict):
    topic: str


def nothing(state: State) -> None:
    return None


def yields(state: State) -> Any:
    yield state


def routes_anywhere(state: State) -> str:
    return "b" if state["topic"] else str(state)


def test_all_problems_are_reported_at_once_in_source_order() -> None:
    graph = StateGraph(State)

    @graph.node
    def stuck(state: State) -> Any:
        return {"unknown": 1}

    graph.add_node("twice", nothing)
    graph.add_node("twice", nothing)
    graph.add_node("bad", yields)
    graph.add_edge("twice", "nowhere")
    graph.add_edge("stuck", "stuck")
    graph.add_conditional_edges("bad", routes_anywhere)
    graph.add_edge(END, "twice")
    with pytest.raises(DefinitionError) as caught:
        graph.compile(interrupt_before=["nobody"])
    found = caught.value.problems
    codes = [problem.code for problem in found]
    assert codes == [
        "MC117",
        "MC112",
        "MC115",
        "MC113",
        "MC118",
        "MC110",
        "MC123",
        "MC122",
        "MC110",
    ]
    lines = [problem.place.line for problem in found if problem.place]
    assert lines == sorted(lines)
    assert all(problem.suggestion for problem in found)


def test_a_mistake_is_reported_once_and_not_what_follows_from_it() -> None:
    graph = StateGraph(State)
    for name in ("research", "review", "publish"):
        graph.add_node(name, nothing)
    graph.add_edges(START, "research", "revew")
    graph.add_edges("review", "publish", END)
    assert [problem.code for problem in problems(graph)] == ["MC110"]


def test_the_error_reads_well() -> None:
    graph = StateGraph(State)
    graph.add_node("a", function(lambda state: {"topik": 1}))
    graph.add_edges(START, "a", "b")
    with pytest.raises(DefinitionError) as caught:
        graph.compile()
    line = here() - 1
    assert str(caught.value) == (
        "the graph has 2 problems:\n"
        f"  {__file__}:{line - 3}: MC115 node 'a' returns 'topik', which the state does not have "
        "(did you mean 'topic'?)\n"
        f"  {__file__}:{line - 2}: MC110 an edge names 'b', which is not a node "
        "(add a node named 'b') [MC100]"
    )


def test_a_problem_without_a_place_or_advice_still_reads_well() -> None:
    assert str(Problem("MC110", "something")) == "MC110 something"
    assert str(DefinitionError([Problem("MC110", "it")])) == (
        "the graph has 1 problem:\n  MC110 it [MC100]"
    )
