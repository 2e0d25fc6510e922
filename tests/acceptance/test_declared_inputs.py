"""The input and the output of a graph, declared; and keys that nothing has written.

A key that neither the input nor a node had written was a bare ``KeyError``, and no entry point
could be told which keys an input needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    DefinitionError,
    ExecutionError,
    InvalidRequest,
    StateGraph,
)
from milecastle.views.graphs import input_schema
from milecastle.views.lines import run_document


class Draft(TypedDict):
    topic: str
    length: int
    text: str


class Asked(TypedDict):
    topic: str
    length: NotRequired[int]


class Given(TypedDict):
    text: str


def _write(state: Draft) -> dict[str, Any]:
    return {"text": state["topic"] * state.get("length", 1)}


def _graph(**declared: Any) -> StateGraph[Draft]:
    graph = StateGraph(Draft, **declared)
    graph.add_node("write", _write)
    graph.add_edges(START, "write", END)
    return graph


def _app(**declared: Any) -> App[Draft]:
    return _graph(**declared).compile(store="memory://")


ENTRIES: dict[str, Callable[[App[Draft], dict[str, Any]], object]] = {
    "invoke": lambda app, given: app.invoke(given, "t"),
    "ainvoke": lambda app, given: asyncio.run(app.ainvoke(given, "t")),
    "unsaved": lambda app, given: _graph(input=Asked).compile().invoke(given),
    "stream": lambda app, given: list(app.stream(given, "t")),
    "submit": lambda app, given: app.submit(given, "t"),
    "queue": lambda app, given: app.submit(given, "t", if_busy="queue"),
    "submit_many": lambda app, given: app.submit_many({"t": given}),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_input_without_a_required_key_is_refused_everywhere(entry: str) -> None:
    app = _app(input=Asked)
    with pytest.raises(InvalidRequest, match="the input lacks 'topic', which Asked requires"):
        ENTRIES[entry](app, {"length": 2})
    with pytest.raises(InvalidRequest, match="the input has 'text', which Asked does not declare"):
        ENTRIES[entry](app, {"topic": "x", "text": "y"})
    assert list(app.threads()) == []
    ENTRIES[entry](app, {"topic": "x"})


def test_without_a_declaration_any_part_of_the_state_is_an_input() -> None:
    assert _app().invoke({"topic": "x", "text": "y"}).state["text"] == "x"


def test_a_declaration_is_not_part_of_the_fingerprint() -> None:
    """A paused thread is past its input: declaring one must not strand it."""
    assert _app().fingerprint == _app(input=Asked, output=Given).fingerprint


def test_a_result_shows_the_keys_of_the_output() -> None:
    result = _app(output=Given).invoke({"topic": "x", "length": 2}, "t")
    assert dict(result) == {"text": "xx"}
    assert run_document(result).state == {"text": "xx"}
    assert result.state["topic"] == "x"


def test_the_json_schema_is_that_of_the_input() -> None:
    declared, bare = input_schema(_app(input=Asked).graph), input_schema(_app().graph)
    assert declared["title"] == "Asked"
    assert list(declared["properties"]) == ["topic", "length"]
    assert declared["required"] == ["topic"]
    assert "required" not in bare


@dataclass
class Lacking:
    topik: str


def test_a_declaration_must_fit_the_state() -> None:
    for what in ("input", "output"):
        with pytest.raises(DefinitionError) as refused:
            _app(**{what: Lacking})
        (problem,) = refused.value.problems
        assert problem.code == "MC127"
        assert problem.suggestion == "did you mean 'topic'?"
        with pytest.raises(DefinitionError, match=f"{what}="):
            _app(**{what: int})


def test_the_input_of_a_schedule_must_fit_the_declaration() -> None:
    graph = _graph(input=Asked)
    graph.schedule("0 3 * * *", input={"length": 1}, name="nightly")
    with pytest.raises(DefinitionError, match="schedule 'nightly': the input lacks 'topic'"):
        graph.compile()


def test_a_subgraph_is_given_the_keys_of_its_input() -> None:
    outer = StateGraph(Draft, name="outer")
    outer.add_node("inner", _app(input=Asked))
    outer.add_edges(START, "inner", END)
    given: Draft = {"topic": "x", "length": 2, "text": "old"}
    assert outer.compile().invoke(given).state["text"] == "xx"
    with pytest.raises(ExecutionError, match="which Asked requires"):
        outer.compile().invoke({"text": "y"})


def test_the_error_of_an_unwritten_key_says_so() -> None:
    app = _app()
    with pytest.raises(ExecutionError) as raised:
        app.invoke({}, "t")
    assert "KeyError" in str(raised.value)
    assert "'topic' (nothing has written 'topic' yet" in str(raised.value)
    (run,) = app.store.runs(app.state("t").key)
    failure = app.store.failure(run.key, run.run_id)
    assert failure is not None
    assert "nothing has written 'topic' yet" in failure.message


def test_other_key_errors_are_as_they_were() -> None:
    graph = StateGraph(Draft)
    graph.add_node("write", lambda state: {"text": dict[str, str]()["topic"]})
    graph.add_edges(START, "write", END)
    with pytest.raises(ExecutionError) as raised:
        graph.compile().invoke({"topic": "x"})
    assert raised.value.hint == ""
