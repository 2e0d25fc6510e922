"""What the tests of graphs share: compiling, and reading what was found."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from milecastle import DefinitionError, StateGraph
from milecastle.errors import Problem
from milecastle.graph.functions import names_around
from milecastle.graph.schema import StateSchema, read_schema
from milecastle.graph.state_types import UnreadableState
from milecastle.graph.structure import CompiledGraph

__all__ = [
    "compiled",
    "function",
    "here",
    "infos",
    "line_of",
    "only_problem",
    "problems",
    "refusal",
    "schema_of",
]


def function(given: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same; a type checker then knows what a lambda takes."""
    return given


def compiled(graph: StateGraph[Any], **options: Any) -> CompiledGraph:
    """The compiled form of a graph that has no problems."""
    return graph.compile(**options).graph


def problems(graph: StateGraph[Any], **options: Any) -> tuple[Problem, ...]:
    """Everything that compiling this graph reports, at least one problem."""
    with pytest.raises(DefinitionError) as caught:
        graph.compile(**options)
    return caught.value.problems


def only_problem(graph: StateGraph[Any], **options: Any) -> Problem:
    """The one problem of a graph."""
    (problem,) = problems(graph, **options)
    return problem


def line_of(function: Callable[..., Any], plus: int = 0) -> int:
    """The line where a function starts (that of its first decorator), or one after it."""
    return function.__code__.co_firstlineno + plus


def here() -> int:
    """The line of the call."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def schema_of(state: Any) -> StateSchema:
    """The schema of a state that is in sight of the caller."""
    return read_schema(state, names_around(state))


def infos(state: Any) -> dict[str, tuple[str, str, bool]]:
    """The type, the reducer and the optionality of each channel."""
    channels = schema_of(state).channels.values()
    return {
        channel.name: (channel.type_name, channel.reducer.name, channel.optional)
        for channel in channels
    }


def refusal(state: Any) -> str:
    """Why a class cannot be a state."""
    with pytest.raises(UnreadableState) as caught:
        schema_of(state)
    return str(caught.value)
