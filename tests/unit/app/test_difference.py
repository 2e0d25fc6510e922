"""The difference between two states, by path."""

from __future__ import annotations

import pytest

from milecastle.app.threads.difference import difference
from milecastle.records import Change


def test_equal_states_have_no_difference() -> None:
    state = {"a": [1, {"b": (1, 2)}], "c": None}
    assert difference(state, state) == []


def test_every_kind_of_difference_is_reported_by_path() -> None:
    old = {"a": 1, "b": [1, 2, 3], "c": {"x": 1}, "d": (1, 2)}
    new = {"a": 2, "b": [1, 9], "c": {"y": 1}, "d": (1, 2, 3)}
    assert difference(old, new) == [
        Change("$.a", "changed", 1, 2),
        Change("$.b[1]", "changed", 2, 9),
        Change("$.b[2]", "removed", old=3),
        Change("$.c.x", "removed", old=1),
        Change("$.c.y", "added", new=1),
        Change("$.d[2]", "added", new=3),
    ]


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), ([1], (1,)), ("1", 1), (None, 0)])
def test_another_type_is_a_difference(old: object, new: object) -> None:
    assert difference({"x": old}, {"x": new}) == [Change("$.x", "changed", old, new)]


def test_keys_that_are_not_strings_are_written_as_they_are() -> None:
    found = difference({"x": {1: "a", (2,): "b"}}, {"x": {1: "c"}})
    assert [(change.path, change.kind) for change in found] == [
        ("$.x[1]", "changed"),
        ("$.x[(2,)]", "removed"),
    ]


def test_values_that_cannot_be_compared_are_a_difference() -> None:
    class Odd:
        def __hash__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

    one, two = Odd(), Odd()
    assert difference({"x": one}, {"x": one}) == []
    assert [change.kind for change in difference({"x": one}, {"x": two})] == ["changed"]
