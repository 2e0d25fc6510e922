"""A step run by itself, from a state that was recorded."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, InvalidRequest, StateGraph, append, interrupt
from milecastle.testing import run_step


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


def count(state: State) -> dict[str, Any]:
    return {"n": state.get("n", 0) + 1, "log": ["count"]}


async def later(state: State) -> dict[str, Any]:
    return {"log": ["later"]}


def ask(state: State) -> dict[str, Any]:
    return {"log": [interrupt("Which?", answer=str)]}


def app_of(**nodes: Any) -> App[State]:
    graph: StateGraph[State] = StateGraph(State)
    for name, function in nodes.items():
        graph.add_node(name, function)
    graph.add_edges(START, *nodes, END)
    return graph.compile()


def test_the_channels_that_changed_are_returned() -> None:
    assert run_step(app_of(count=count), ["count"], {"n": 1, "log": []}) == {
        "n": 2,
        "log": ["count"],
    }


def test_nodes_of_one_step_see_the_same_state() -> None:
    app = app_of(count=count, later=later)
    assert run_step(app, ["count", "later"], {"n": 1}) == {"n": 2, "log": ["count", "later"]}


def test_a_question_needs_its_recorded_answer() -> None:
    app = app_of(ask=ask)
    assert run_step(app, ["ask"], {}, answers={"ask/0": "this"}) == {"log": ["this"]}
    with pytest.raises(InvalidRequest, match="waits for an answer"):
        run_step(app, ["ask"], {})


def test_a_subgraph_is_tested_from_inside() -> None:
    app = app_of(child=app_of(count=count))
    with pytest.raises(InvalidRequest, match="is a subgraph"):
        run_step(app, ["child"], {})


def test_who_runs_a_step_is_outside_of_its_nodes() -> None:
    run_step(app_of(ask=ask), ["ask"], {"log": []}, answers={"ask/0": "this"})
    with pytest.raises(InvalidRequest, match="inside a node"):
        interrupt("who?")
