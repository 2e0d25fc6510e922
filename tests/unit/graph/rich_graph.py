"""A graph with some of everything, whose fingerprint is held by a test. Run it to print that."""

import datetime as dt
import decimal
import enum
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict, Union

import msgspec

from milecastle import (
    END,
    START,
    StateGraph,
    add,
    append,
    maximum,
    merge,
    minimum,
    union,
)

UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Doc:
    text: str


def longest(old: str, update: str) -> str:
    return max(old, update, key=len)


class Base(TypedDict):
    topic: str
    day: dt.date
    moment: Optional[dt.datetime]  # noqa: UP045
    price: decimal.Decimal
    key: uuid.UUID
    path: Path


class Rich(Base, total=False):
    notes: Annotated[list[str], append]
    table: Annotated[dict[str, list[int]], merge]
    total: Annotated[float, add]
    top: Annotated[int, maximum]
    low: Annotated[int, minimum]
    seen: Annotated[set[UserId], union]
    best: Annotated[str, longest]
    color: Color
    kind: Literal["ä", "b", 1, None]  # noqa: PYI061
    shade: Literal[Color.RED, Color.BLUE]
    docs: typing.List["Doc"]  # noqa: UP006
    either: Union[str, None, int, list[Optional[int]]]  # noqa: RUF036, UP007, UP045
    call: Callable[[int, str], None]
    anything: Callable[..., Any]
    pair: tuple[int, ...]
    view: Mapping[str, Sequence[Doc]]
    raw: NotRequired[bytes]
    whatever: Any
    cls: type[int]


class Tag(msgspec.Struct, kw_only=True):
    """A struct."""

    label: str
    weight: float = 1.0
    seen: list[int] = []


class Leaf(TypedDict):
    """A TypedDict with a key that may be missing, and one that its own class does not say of."""

    tag: Tag
    notes: NotRequired[list[str]]


class Branch(Leaf, total=False):
    """One that refers to itself."""

    parts: "list[Branch]"
    docs: Annotated[dict[str, Optional[Doc]], "a comment"]  # noqa: UP045
    owner: UserId
    color: Color


class Nested(TypedDict):
    """A state of nested types."""

    tree: Branch
    pair: tuple[Doc, Union[Tag, None]]  # noqa: UP007


def step(state: Rich) -> None:
    """Do nothing."""


def ready(state: Rich) -> bool:
    """Hold always."""
    return True


async def route(state: Rich) -> list[Literal["write", "check"]]:
    """Lead on."""
    return ["write", "check"]


def build() -> StateGraph[Rich]:
    """Build the graph."""
    graph = StateGraph(Rich)
    graph.add_node("plan", step)
    graph.add_node("write", step, version="2")
    graph.add_node("check", step)
    graph.add_node('it\'s "done"\n名', step)
    graph.add_edges(START, "plan")
    graph.add_conditional_edges("plan", route)
    graph.add_edge("write", 'it\'s "done"\n名', when=ready)
    graph.add_edge("write", END)
    graph.add_edge("check", 'it\'s "done"\n名')
    graph.set_exit_point('it\'s "done"\n名')
    return graph


def build_nested() -> StateGraph[Nested]:
    """Build a graph of nested types, with the rich one as a subgraph."""
    graph = StateGraph(Nested)
    graph.add_node("rich", build().compile(), give=lambda state: {}, take=lambda state: {})
    graph.add_edges(START, "rich", END)
    return graph


if __name__ == "__main__":
    print(build().compile().fingerprint, build_nested().compile().fingerprint)
