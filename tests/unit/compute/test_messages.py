"""Errors as messages: the same class where it is known, the same name and text where it is not."""

from __future__ import annotations

from typing import Any, Self

import pytest

from milecastle import InvalidRequest
from milecastle.compute.messages import Raised, pack_raised, subgraph_at, unpack_raised
from tests.acceptance.compute import graphs
from tests.acceptance.compute.graphs import Unlucky


class Picky(Exception):
    """Cannot be made, and says nothing that can be relied on."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(first, second)
        self.first = first

    def __new__(cls, first: object, second: object) -> Self:
        return super().__new__(cls, first, second)

    def __str__(self) -> str:
        raise ValueError("no text")


def sent(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return unpack_raised(pack_raised(raised), "there")


@pytest.mark.parametrize(
    "error",
    [
        Unlucky(3),
        KeyError("a"),
        FileNotFoundError(2, "No such file", "a.txt"),
        SystemExit(3),
        InvalidRequest("no"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ],
)
def test_error_keeps_class_text_and_attributes(error: BaseException) -> None:
    """Fails if attributes are set after the text is compared: then the class is another."""
    found = sent(error)
    assert isinstance(found, type(error))
    assert str(found) == str(error)
    assert vars(found).get("number") == vars(error).get("number")
    assert "raised there" in "".join(found.__notes__)


def test_error_that_cannot_be_made_again_keeps_its_name() -> None:
    found = sent(Picky(object(), 2))
    assert type(found).__name__ == "Picky"
    assert str(found) == ""


def test_unknown_class_keeps_its_name_and_is_not_imported() -> None:
    """Fails if the name of a module is imported: `antigravity` opens a browser."""
    import sys

    for module, name in (("antigravity", "Flight"), ("os", "path.join"), ("builtins", "print")):
        raised = Raised(module, name, "text", None, {}, "")
        found = unpack_raised(raised, "there")
        assert (type(found).__qualname__, str(found)) == (name, "text")
        assert isinstance(found, Exception)
    assert "antigravity" not in sys.modules


def test_notes_are_kept() -> None:
    error = ValueError("a")
    error.add_note("look here")
    assert "look here" in sent(error).__notes__


def test_path_through_a_node_that_is_not_a_subgraph_is_a_mistake() -> None:
    graph: Any = graphs.squares.compile().graph
    with pytest.raises(AssertionError, match="not a subgraph"):
        subgraph_at(graph, ("item",))
