"""States that are pydantic models, where pydantic is installed."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from milecastle import StateGraph, append, maximum
from milecastle.graph.schema import read_schema
from milecastle.graph.state_types import UnreadableState

pydantic = pytest.importorskip("pydantic")

from pydantic import AfterValidator, BaseModel, Field  # noqa: E402


def positive(value: int) -> int:
    assert value >= 0
    return value


class Doc(BaseModel):
    text: str


class State(BaseModel):
    topic: str
    notes: Annotated[list[str], append]
    best: Annotated[int, maximum, Field(ge=0)] = 0
    limit: Annotated[int, AfterValidator(positive)] = Field(default=3, gt=0)
    tags: list[str] = Field(default_factory=list, alias="labels")
    doc: Doc | None = None
    given: list[int] = [1]


def test_each_field_of_a_model_is_a_channel() -> None:
    channels = read_schema(State, {}).channels.values()
    assert {c.name: (c.type_name, c.reducer.name, c.optional) for c in channels} == {
        "topic": ("str", "last", False),
        "notes": ("list[str]", "append", True),
        "best": ("int", "maximum", True),
        "limit": ("int", "last", True),
        "tags": ("list[str]", "last", True),
        "doc": ("Doc | None", "last", True),
        "given": ("list[int]", "last", True),
    }


def test_defaults_are_made_again_each_time() -> None:
    schema = read_schema(State, {})
    one, other = schema.initial(), schema.initial()
    assert one == {"notes": [], "best": 0, "limit": 3, "tags": [], "doc": None, "given": [1]}
    assert one["tags"] is not other["tags"]
    assert one["given"] is not other["given"]


def test_a_model_is_presented_as_itself_and_read_back() -> None:
    schema = read_schema(State, {})
    values = schema.initial() | {"topic": "walls", "doc": Doc(text="a"), "tags": ["b"]}
    state = schema.present(values)
    assert isinstance(state, State)
    assert schema.fields_of(state) == values
    assert schema.read_input(state) == values
    assert schema.missing({"topic": "a"}) == ["notes", "best", "limit", "tags", "doc", "given"]


def test_a_model_inside_a_function_may_name_what_comes_after_it() -> None:
    class Local(BaseModel):
        later: Later | None = None

    class Later(BaseModel):
        text: str

    graph = StateGraph(Local)
    graph.add_node("a", print)
    graph.add_edges("__start__", "a", "__end__")
    assert graph.compile().graph.schema.channels["later"].type_name.endswith("Later | None")


def test_a_model_that_cannot_be_completed_is_refused() -> None:
    class Local(BaseModel):
        value: Nowhere  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(UnreadableState, match=r"Local.*Nowhere"):
        read_schema(Local, {})


def test_a_default_that_depends_on_other_fields_is_refused() -> None:
    def double(data: dict[str, Any]) -> int:
        return int(data["size"]) * 2

    class Local(BaseModel):
        size: int
        twice: int = Field(default_factory=double)

    with pytest.raises(UnreadableState, match="the default of 'twice' depends on other fields"):
        read_schema(Local, {})
