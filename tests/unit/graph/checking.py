"""What the tests of graphs share: compiling, and reading what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from milecastle import DefinitionError, Problem, StateGraph
from milecastle.graph.compiled import CompiledGraph

__all__ = ["compiled", "function", "line_of", "only_problem", "problems"]


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
