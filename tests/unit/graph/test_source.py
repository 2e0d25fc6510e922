"""Reading sources: literals are found with their lines, everything else is left alone."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milecastle.graph.source import returned_keys, returned_names
from tests.unit.graph.checking import function

KEY = "key"
NAME = "name"


def keys(read: Callable[..., Any]) -> dict[str, int]:
    """The keys that are found, each with its line counted from the function's first."""
    code = read.__code__
    found = returned_keys(read).names
    assert all(place.file == code.co_filename for place in found.values())
    return {key: place.line - code.co_firstlineno for key, place in found.items()}


def test_keys_are_found_with_their_lines() -> None:
    def node(state: Any) -> Any:
        if state:
            return {"a": 1, "b": 2}
        if state is None:
            return None
        for _ in ():
            return {
                "c": 3,
                "a": 4,
            }
        with memoryview(b"") as view:
            try:
                return {"d": 5} if len(view) else {"e": 6}
            finally:
                del view

    assert keys(node) == {"a": 2, "b": 2, "c": 7, "d": 12, "e": 12}
    assert returned_keys(node).complete


def test_what_is_returned_inside_another_function_does_not_count() -> None:
    def node(state: Any) -> Any:
        def inner() -> Any:
            return {"inner": 1}

        class Inner:
            def method(self) -> Any:
                return {"method": 1}

        other = lambda: {"lambda": 1}  # noqa: E731
        return {"outer": [inner, Inner, other]}

    assert keys(node) == {"outer": 9}


@pytest.mark.parametrize(
    "computed",
    [
        function(lambda state: {KEY: 1}),
        function(lambda state: {**state}),
        function(lambda state: dict(a=1)),  # noqa: C408
        function(lambda state: state),
        function(lambda state: {1: 2}),
    ],
)
def test_what_is_not_a_literal_is_unchanged(computed: Any) -> None:
    found = returned_keys(computed)
    assert (found.names, found.complete) == ({}, False)


def test_an_async_function_a_method_a_partial_and_an_object_are_read() -> None:
    class Thing:
        def method(self, state: Any) -> Any:
            text = """
a line to the left of everything
"""
            return {"method": text}

        def __call__(self, state: Any) -> Any:
            return {"object": 1}

    async def later(state: Any) -> Any:
        return {"later": 1}

    assert list(returned_keys(Thing().method).names) == ["method"]
    assert list(returned_keys(functools.partial(later, 1)).names) == ["later"]
    assert list(returned_keys(Thing()).names) == ["object"]


def test_a_decorator_may_return_something_else_so_it_is_not_looked_through() -> None:
    def under(wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def wrapper(state: Any) -> Any:
            return {KEY: wrapped(state)}

        return wrapper

    @under
    def node(state: Any) -> Any:
        return {"data": 1}

    assert returned_keys(node).names == {}


def test_each_of_several_lambdas_in_a_line_is_read() -> None:
    """Seen to fail without the columns of the code: two lambdas in a line were not read."""
    alone = function(lambda state: {"a": 1})
    one, other = function(lambda state: {"b": 1}), function(lambda state: {"\u00fc": 1, "c": 1})
    nested = function(lambda state: {"d": lambda: {"e": 1}})
    either = function(lambda state: {"f": 1} if state else {"g": 1}), function(lambda state: None)
    assert list(returned_keys(alone).names) == ["a"]
    assert list(returned_keys(one).names) == ["b"]
    assert list(returned_keys(other).names) == ["\u00fc", "c"]
    assert list(returned_keys(nested).names) == ["d"]
    assert list(returned_keys(either[0]).names) == ["f", "g"]
    assert returned_keys(either[1]).names == {}


def test_a_variable_that_holds_a_dict_is_read() -> None:
    """Seen to fail: only what is in the return statement was read."""

    def plain(state: Any) -> Any:
        out = {"a": 1}
        return out  # noqa: RET504

    def annotated(state: Any) -> Any:
        out: dict[str, int] = {"a": 1}
        return out

    def either(state: Any) -> Any:
        if state:  # noqa: SIM108
            out = {"a": 1}
        else:
            out = {"b": 2}
        return out

    assert list(returned_keys(plain).names) == ["a"]
    assert list(returned_keys(annotated).names) == ["a"]
    assert list(returned_keys(either).names) == ["a", "b"]
    assert returned_keys(either).complete


def test_a_variable_that_may_hold_something_else_is_left_alone() -> None:
    def changed(state: Any) -> Any:
        out = {"a": 1}
        del out["a"]
        return out

    def given(out: Any) -> Any:
        return out

    def computed(state: Any) -> Any:
        out = {"a": 1}
        out = dict(state)
        return out  # noqa: RET504

    def handed_on(state: Any) -> Any:
        out = {"a": 1}
        state.change(out)
        return out

    for found in map(returned_keys, (changed, given, computed, handed_on)):
        assert (found.names, found.complete) == ({}, False)


def test_names_of_nodes_may_be_constants_of_the_module() -> None:
    def router(state: Any) -> Any:
        if state:
            return NAME
        return ["a", "b"] if state is None else ("c",)

    found = returned_names(router)
    assert list(found.names) == ["name", "a", "b", "c"]
    assert (found.complete, found.several) == (True, False)
    assert found.together == (frozenset({"a", "b"}),)


def test_list_of_unknown_type_may_hold_anything() -> None:
    unknown = returned_names(function(lambda state: ["a", *state]))
    assert (list(unknown.names), unknown.complete, unknown.several) == (["a"], False, True)
    comprehension = returned_names(function(lambda state: [name.lower() for name in state]))
    assert (comprehension.complete, comprehension.several) == (False, True)
    called = returned_names(function(lambda state: str(state)))
    assert (called.complete, called.several) == (False, False)


def load(text: str, name: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    return space


@pytest.mark.parametrize("builtin", [print, len, functools.lru_cache(len), int, object()])
def test_what_has_no_source_is_left_alone(builtin: Any) -> None:
    assert not returned_keys(builtin).complete
    assert not returned_names(builtin).complete


def test_code_without_a_file_is_left_alone() -> None:
    space = load("def f(state): return {'a': 1}", "<nowhere>")
    assert returned_keys(space["f"]).names == {}
    assert returned_names(space["f"]).names == {}


def test_a_file_that_changed_since_is_not_misread(tmp_path: Path) -> None:
    file = tmp_path / "changed.py"
    file.write_text("def f(state):\n    return {'a': 1}\n")
    space = load(file.read_text(), str(file))
    assert list(returned_keys(space["f"]).names) == ["a"]
    file.write_text("def another(state):\n    return {'bbb': 1}\n")
    assert returned_keys(space["f"]).names == {}
    file.write_text("x = (\n")
    assert returned_keys(space["f"]).names == {}
    file.unlink()
    linecache.clearcache()
    assert returned_keys(space["f"]).names == {}
