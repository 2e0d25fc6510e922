"""Subgraphs: what leads in and out when both states share keys."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, InvalidUpdate, StateGraph, add, append, merge, union
from milecastle.graph.structure import Subgraph


class Odd:
    """A value that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("no answer")

    def __hash__(self) -> int:
        return id(self)


class State(TypedDict, total=False):
    plain: Any
    notes: Annotated[list[Any], append]
    facts: Annotated[dict[str, Any], merge]
    tags: Annotated[set[str], union]
    total: Annotated[float, add]


def nothing(state: State) -> None:
    return None


def child() -> Subgraph:
    graph = StateGraph(State)
    graph.add_node("inner", nothing)
    graph.add_edges(START, "inner", END)
    compiled = graph.compile().graph
    return Subgraph(compiled, compiled.schema)


def update(before: State, after: State) -> dict[str, Any]:
    made: dict[str, Any] = child().update("child", before, dict(after))
    return made


def test_what_was_added_is_the_update() -> None:
    before: State = {"notes": [1], "facts": {"a": 1}, "tags": {"x"}, "total": 2}
    after: State = {"notes": [1, 2], "facts": {"a": 1, "b": 2}, "tags": {"x", "y"}, "total": 5}
    assert update(before, after) == {"notes": [2], "facts": {"b": 2}, "tags": {"y"}, "total": 3}


def test_equal_values_that_were_read_back_are_not_an_update() -> None:
    before: State = {"plain": [{"a": (1, 2)}], "facts": {"a": [1]}, "notes": [[1]]}
    after: State = {"plain": [{"a": (1, 2)}], "facts": {"a": [1]}, "notes": [[1]]}
    assert update(before, after) == {}


def test_value_that_cannot_be_compared_counts_as_changed() -> None:
    one, other = Odd(), Odd()
    assert update({"plain": one}, {"plain": other}) == {"plain": other}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"notes": [1, 2]}, {"notes": [2, 1]}),
        ({"facts": {"a": 1}}, {"facts": {}}),
        ({"tags": {"a"}}, {"tags": set[str]()}),
    ],
    ids=["list", "dict", "set"],
)
def test_removal_cannot_be_expressed_as_an_addition(before: Any, after: Any) -> None:
    with pytest.raises(InvalidUpdate, match="take="):
        update(before, after)
