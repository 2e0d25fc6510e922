"""An input is encoded once, unless code of the user may change it before it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, StateGraph
from milecastle.codec.values import ValueCodec


class Large(TypedDict):
    text: str
    n: int


def _count(state: Large) -> dict[str, Any]:
    return {"n": state["n"] + 1}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was encoded since."""
    found: list[Any] = []
    encode = ValueCodec.encode

    def noting(self: ValueCodec, value: Any, *, path: str = "$") -> bytes:
        found.append(value)
        return encode(self, value, path=path)

    monkeypatch.setattr(ValueCodec, "encode", noting)
    return found


def _line(state: Any, node: Any) -> App[Any]:
    graph = StateGraph(state)
    graph.add_node("a", node)
    graph.add_edges(START, "a", END)
    return graph.compile(store="memory://")


def test_input_is_encoded_once(encoded: list[Any]) -> None:
    """Failed before: once for its digest, and once more for the first entry."""
    app, text = _line(Large, _count), "x" * 100
    for n in range(2):  # a snapshot, then a delta
        app.invoke({"text": text, "n": n}, "t")
    assert sum(text in value for value in encoded) == 2
    assert app.state("t").state == {"text": text, "n": 2}
    assert app.invoke({"text": text, "n": 1}, "t").reused


def _with_count(old: list[int], new: list[int]) -> list[int]:
    new.append(len(old))
    return new


class Listed(TypedDict):
    items: list[int]


def _nothing(state: Any) -> dict[str, Any]:
    return {}


class Reduced(TypedDict):
    items: Annotated[list[int], _with_count]


def test_what_a_reducer_made_of_the_input_is_stored() -> None:
    """Fails if the bytes of the input are stored although its reducer changed it."""
    app = _line(Reduced, _nothing)
    for n in (7, 9):
        app.invoke({"items": [n]}, "t")
    assert app.state("t").state["items"] == [9, 1]


@dataclass
class Sorted:
    items: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.items.sort()


def test_what_the_state_made_of_the_input_is_stored() -> None:
    """Fails if the bytes of the input are stored although the state's class changed it."""
    app = _line(Sorted, _nothing)
    app.invoke({"items": [3, 1]}, "t")
    assert app.state("t").state.items == [1, 3]


def test_what_the_first_router_made_of_the_input_is_stored() -> None:
    """Fails if the bytes of the input are stored although a router was given its values."""

    def route(state: Listed) -> str:
        state["items"].append(1)
        return "a"

    graph = StateGraph(Listed)
    graph.add_node("a", _nothing)
    graph.add_conditional_edges(START, route, {"a": "a"})
    graph.add_edge("a", END)
    app = graph.compile(store="memory://")
    app.invoke({"items": [7]}, "t")
    assert app.state("t").state == {"items": [7, 1]}
