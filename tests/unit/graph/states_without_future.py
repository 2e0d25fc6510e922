"""States whose annotations are evaluated as they are written: no `annotations` from the future."""

from typing import Annotated, NotRequired, Required, TypedDict

from milecastle import add, append


def longest(old: str, update: str) -> str:
    return max(old, update, key=len)


class Plain(TypedDict):
    topic: str
    notes: Annotated[list[str], append]
    score: NotRequired[float]
    best: Annotated[str, longest]


class Loose(TypedDict, total=False):
    topic: Required[str]
    count: int


class Base(TypedDict):
    first: int


class Derived(Base, total=False):
    second: Annotated[int, add]
