"""The code version: it changes with what the code does, and with nothing else."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from milecastle.builds.file_graph import code_version
from milecastle.errors import InvalidRequest

PLAIN = """
    import json
    LIMIT = 3
    TABLE = {"a": [1, 2]}
    def helper(x):
        return x + LIMIT
    class Model:
        rate = 1
        def predict(self, x):
            return x * self.rate
    def node(state, n=1):
        model = Model()
        return {"x": helper(model.predict(n)), "t": TABLE, "j": json.dumps(state)}
"""


def make(text: str, name: str = "node") -> Callable[..., Any]:
    """The function of a module with this text."""
    module = ModuleType("made_up_module")
    exec(compile(textwrap.dedent(text), "made_up.py", "exec"), vars(module))
    function: Callable[..., Any] = vars(module)[name]
    return function


def version(text: str) -> str:
    return code_version(make(text), "n")


def test_the_same_code_has_the_same_version() -> None:
    assert version(PLAIN) == version(PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    def helper", "    # a comment\n\n\n    def helper"),
        ("return x + LIMIT", "return (x +  LIMIT)"),
        ("LIMIT = 3", "LIMIT = 3\n    UNUSED = 4"),
    ],
)
def test_comments_layout_and_what_is_not_named_do_not_count(old: str, new: str) -> None:
    assert old in PLAIN
    assert version(PLAIN.replace(old, new)) == version(PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x + LIMIT", "return x - LIMIT"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("[1, 2]", "[1, 3]"),
        ("rate = 1", "rate = 2"),
        ("x * self.rate", "x / self.rate"),
        ("n=1", "n=2"),
        ('"x": helper', '"y": helper'),
        ("import json", "import pprint as json"),
    ],
)
def test_what_the_code_does_and_names_counts(old: str, new: str) -> None:
    assert old in PLAIN
    assert version(PLAIN.replace(old, new)) != version(PLAIN)


def closing_over(value: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return value

    return inner


def test_what_a_function_closes_over_counts() -> None:
    assert code_version(closing_over(1), "n") == code_version(closing_over(1), "n")
    assert code_version(closing_over(1), "n") != code_version(closing_over(2), "n")
    assert code_version(closing_over([1, {"a": 2}]), "n") != code_version(
        closing_over([1, {"a": 3}]), "n"
    )


def test_path_that_is_a_default_counts() -> None:
    """It was refused: a path cannot be stored in a state."""
    text = "from pathlib import Path\ndef node(state, out=Path({!r})): return {{}}"
    assert version(text.format("a/b")) == version(text.format("a/b"))
    assert version(text.format("a/b")) != version(text.format("a/c"))


def test_a_function_that_is_closed_over_counts() -> None:
    one, other = make("def f(): return 1", "f"), make("def f(): return 2", "f")
    assert code_version(closing_over(one), "n") != code_version(closing_over(other), "n")
    assert code_version(closing_over([one]), "n") != code_version(closing_over([other]), "n")


def test_what_a_partial_binds_counts() -> None:
    def node(x: int, y: int = 0) -> int:
        return x + y

    versions = {
        code_version(function, "n")
        for function in (partial(node, 1), partial(node, 2), partial(node, 1, y=2), node)
    }
    assert len(versions) == 4
    assert code_version(partial(node), "n") == code_version(node, "n")


def test_versions_that_are_known_are_not_found_again() -> None:
    def node(x: int) -> int:
        return x

    known = {id(node): "known"}
    assert code_version(partial(node), "n", known) == "known"
    known.clear()
    found = code_version(node, "n", known)
    assert known == {id(node): found}


def test_unknown_code_asks_for_a_version() -> None:
    with pytest.raises(InvalidRequest, match="node 'train' refers to 'value', of type lock"):
        code_version(closing_over(threading.Lock()), "train")
    with pytest.raises(InvalidRequest, match="give the node a version="):
        code_version(partial(closing_over, threading.Lock()), "train")


LOGGER = logging.getLogger("x")


def test_logger_of_the_module_is_not_an_obstacle() -> None:
    def node() -> None:
        LOGGER.info("x")

    assert code_version(node, "n")


def test_functions_that_name_each_other_end() -> None:
    text = """
        def a(n): return n and b(n - 1)
        def b(n): return n and a(n - 1)
        def node(state): return a(3)
    """
    assert version(text) == version(text)
    assert version(text) != version(text.replace("n and a(n - 1)", "n and a(n - 2)"))


def test_values_that_hold_themselves_end() -> None:
    knot: list[Any] = [threading.Lock]
    knot.append(knot)
    assert code_version(closing_over(knot), "n")


def test_methods_static_methods_and_properties_count() -> None:
    text = """
        class A:
            @staticmethod
            def s(): return 1
            @classmethod
            def c(cls): return 1
            @property
            def p(self): return 1
        class B(A): pass
        def node(state): return B().p, B.s(), B.c()
    """
    changed = {
        version(text.replace(f"def {name}: return 1", f"def {name}: return 2"))
        for name in ("s()", "c(cls)", "p(self)")
    }
    assert len({version(text), *changed}) == 4


def test_a_bound_method_counts_with_its_object() -> None:
    class Plain:
        def go(self) -> int:
            return 1

    with pytest.raises(InvalidRequest, match="'self'"):
        code_version(Plain().go, "n")


def test_a_module_of_ones_own_counts_by_what_is_named_of_it() -> None:
    own = ModuleType("own_module")

    def with_own(text: str) -> str:
        exec(textwrap.dedent(text), vars(own))
        function: Any = make("def node(state): return own.f(state)")
        function.__globals__["own"] = own
        return code_version(function, "n")

    before = with_own("def f(x): return 1\ndef g(x): return 1")
    assert with_own("def f(x): return 1\ndef g(x): return 2") == before
    assert with_own("def f(x): return 2\ndef g(x): return 1") != before


def test_the_version_is_the_same_in_every_process() -> None:
    code = textwrap.dedent(PLAIN).replace('"a": [1, 2]', '"a": [1, 2], "s": {"p", "q", "r"}')
    script = (
        code
        + "\nfrom milecastle.builds.file_graph import code_version"
        + "\nnode.__code__ = node.__code__.replace(co_consts=(*node.__code__.co_consts,"
        + " frozenset({'p', 'q', 'r'})))"
        + "\nprint(code_version(node, 'n'))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_functions_in_partials_and_dicts_count() -> None:
    """Fails if the members of a dict, or what a partial binds, are not looked into."""

    def one(x: int) -> int:
        return x + 1

    def other(x: int) -> int:
        return x + 2

    values: list[Any] = [{"f": one}, {"f": other}, {"g": one}, partial(one), partial(other)]
    values += [partial(one, 1), partial(one, x=1)]
    versions = [code_version(closing_over(value), "n") for value in values]
    assert len(set(versions)) == len(versions)
    assert versions[0] == code_version(closing_over({"f": one}), "n")


def test_a_set_in_the_code_counts_by_its_members() -> None:
    """Fails if its text is taken as it is: these two have the same place in a set.

    Python 3.14 keeps the first constant of a function, used or not: here its docstring.
    """
    text = "def node(x): 'looks'; return x in {0, 8}"
    assert version(text) == version("def node(x): 'looks'; return x in {8, 0}")
    assert version(text) != version("def node(x): 'looks'; return x in {0, 9}")
