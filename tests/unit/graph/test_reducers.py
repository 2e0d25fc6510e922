"""Reducers: what they compute, what they refuse, and what they are called."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any

import pytest

from milecastle.model.reducers import (
    BUILTIN,
    LAST,
    SET,
    add,
    append,
    builtin_reducer,
    last,
    maximum,
    merge,
    minimum,
    reducer_of,
    union,
)


def test_each_reducer_combines_the_old_value_with_the_update() -> None:
    assert last(1, 2) == 2
    assert append([1], [2, 3]) == [1, 2, 3]
    assert append([1], (2,)) == [1, 2]
    assert merge({"a": 1, "b": 1}, {"b": 2}) == {"a": 1, "b": 2}
    assert add(1, 2) == 3
    assert maximum(1, 2) == 2
    assert minimum(1, 2) == 1
    assert union({1}, [1, 2]) == {1, 2}


def test_the_old_value_is_never_changed_in_place() -> None:
    items, table, members = [1], {"a": 1}, {1}
    append(items, [2])
    merge(table, {"b": 2})
    union(members, {2})
    assert (items, table, members) == ([1], {"a": 1}, {1})


@pytest.mark.parametrize(
    ("reducer", "old", "update", "message"),
    [
        (append, [], "word", "append takes a list of items, not str"),
        (append, [], {1}, "append takes a list of items, not set"),
        (merge, {}, [("a", 1)], "merge takes a dict, not list"),
        (union, set[int](), "word", "union takes a set or a list of items, not str"),
    ],
)
def test_an_update_of_the_wrong_kind_is_refused(
    reducer: Any, old: Any, update: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        reducer(old, update)


def test_the_codes_of_the_log_never_change() -> None:
    codes = {reducer.name: reducer.code for reducer in BUILTIN}
    assert codes == {
        "last": SET,
        "append": 1,
        "merge": 2,
        "add": 3,
        "maximum": 4,
        "minimum": 5,
        "union": 6,
        "edit": 7,
    }


def test_a_builtin_reducer_is_found_by_its_function() -> None:
    for reducer in BUILTIN:
        assert reducer_of(reducer.function) is reducer
    assert reducer_of(last) is LAST


@pytest.mark.parametrize(
    ("function", "name"), [(operator.add, "add"), (max, "maximum"), (min, "minimum")]
)
def test_what_the_language_calls_it_is_the_same_reducer(function: Any, name: str) -> None:
    assert reducer_of(function).name == name
    assert reducer_of(function) in BUILTIN


def test_a_users_own_reducer_is_stored_as_it_is_and_has_no_empty_value() -> None:
    def longest(old: str, update: str) -> str:
        return max(old, update, key=len)

    reducer = reducer_of(longest)
    assert (reducer.code, reducer.empty) == (SET, None)
    assert reducer.name.endswith("longest")
    assert builtin_reducer(longest) is None


def test_user_reducer_with_the_name_of_a_builtin_is_distinguished() -> None:
    def own(old: int, update: int) -> int:
        return old - update

    own.__qualname__ = "add"
    assert reducer_of(own).name == "own add"
    own.__qualname__ = "last"
    assert reducer_of(own) is not LAST
    assert reducer_of(own).name == "own last"


def test_a_partial_goes_by_its_function_and_an_object_by_its_class() -> None:
    def capped(limit: int, old: int, update: int) -> int:
        return min(limit, old + update)

    @dataclass  # which makes it unhashable
    class Blend:
        def __call__(self, old: float, update: float) -> float:
            return (old + update) / 2

    assert reducer_of(functools.partial(capped, 9)).name.endswith("capped")
    assert reducer_of(Blend()).name.endswith("Blend")
