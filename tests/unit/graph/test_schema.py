"""The schema: the channels of a TypedDict, and what can be no state at all."""

from __future__ import annotations

import operator
import typing
from dataclasses import make_dataclass
from typing import (
    Annotated,
    Any,
    Generic,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
)

import pytest

from milecastle import InvalidRequest, StateGraph, add, append, last, maximum, merge
from milecastle.model.manifest import ChannelInfo
from milecastle.model.reducers import LAST
from tests.unit.graph import states_without_future
from tests.unit.graph.checking import infos, refusal, schema_of

if typing.TYPE_CHECKING:
    Missing: typing.TypeAlias = int


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


def test_each_key_of_a_typed_dict_is_a_channel() -> None:
    assert infos(Plain) == {
        "topic": ("str", "last", False),
        "notes": ("list[str]", "append", True),
        "score": ("float", "last", True),
        "best": ("str", "longest", False),
    }


def test_total_false_makes_keys_optional_but_those_marked() -> None:
    assert infos(Loose) == {"topic": ("str", "last", False), "count": ("int", "last", True)}


def test_keys_are_inherited() -> None:
    assert infos(Derived) == {"first": ("int", "last", False), "second": ("int", "add", True)}


def test_annotations_that_are_not_strings_say_the_same() -> None:
    assert infos(states_without_future.Plain) == infos(Plain) | {"best": ("str", "longest", False)}
    assert infos(states_without_future.Loose) == infos(Loose)
    assert infos(states_without_future.Derived) == infos(Derived)


def test_a_reducer_is_found_in_any_nesting() -> None:
    class Nested(TypedDict):
        a: Annotated[NotRequired[list[int]], append]
        b: NotRequired[Annotated[list[int], append]]
        c: Annotated[Annotated[list[int], "words"], append, "more words"]
        d: Required[Annotated[list[int], append]]
        e: Annotated[int | None, last]

    found = schema_of(Nested).channels
    assert [found[name].reducer.name for name in "abcde"] == ["append"] * 4 + ["last"]
    assert {channel.type_name for channel in found.values()} == {"list[int]", "int | None"}


def test_the_reducers_of_the_language_are_understood() -> None:
    class State(TypedDict):
        items: Annotated[list[int], operator.add]
        top: Annotated[int, max]

    assert [info[1] for info in infos(State).values()] == ["add", "maximum"]


def test_a_class_inside_a_function_sees_the_names_of_that_function() -> None:
    class Doc(TypedDict):
        text: str

    class State(TypedDict):
        docs: Annotated[list[Doc], append]
        again: Doc

    def build(state: Any) -> StateGraph[Any]:
        return StateGraph(state)

    graph = build(State)
    graph.add_node("a", print)
    graph.add_edges("__start__", "a", "__end__")
    app = graph.compile()
    assert [c.annotation for c in app.graph.schema.channels.values()] == [list[Doc], Doc]


def test_a_local_variable_does_not_hide_a_name_of_the_module() -> None:
    str = "a local variable"
    assert str
    graph = StateGraph(Plain)
    graph.add_node("a", print)
    graph.add_edges("__start__", "a", "__end__")
    assert graph.compile().graph.schema.channels["topic"].type_name == "str"


def make_state() -> Any:
    class Inner:
        pass

    class State(TypedDict):
        inner: Inner

    return State


def test_a_name_that_is_out_of_sight_is_refused() -> None:
    assert "an annotation of State names 'Inner', which is not defined" in refusal(make_state())


def test_a_name_that_only_the_type_checker_knows_is_refused() -> None:
    class State(TypedDict):
        value: Missing

    assert "names 'Missing', which is not defined" in refusal(State)


def test_an_annotation_that_raises_is_refused() -> None:
    broken = make_dataclass("Broken", [("value", "1 / 0")])
    assert "the annotations of Broken cannot be read: division by zero" in refusal(broken)
    nonsense = make_dataclass("Nonsense", [("value", "not a type")])
    assert "the annotations of Nonsense cannot be read" in refusal(nonsense)


class NoFields(TypedDict):
    pass


class NotAState:
    topic: str


class Tuple(typing.NamedTuple):
    topic: str


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (NotAState, "NotAState is not a TypedDict, a dataclass or a pydantic model"),
        (Tuple, "Tuple is not a TypedDict"),
        (dict, "dict is not a TypedDict"),
        (dict[str, int], "dict is not a TypedDict"),
        ({"topic": str}, "dict is not a TypedDict"),
        (None, "NoneType is not a TypedDict"),
        (NoFields, "NoFields declares no fields"),
    ],
)
def test_what_is_not_a_state_is_refused(state: Any, message: str) -> None:
    assert message in refusal(state)


async def later(old: int, update: int) -> int:
    return old + update


def one_value(old: int) -> int:
    return old


class TwoReducers(TypedDict):
    value: Annotated[int, add, maximum]


class TwoApart(TypedDict):
    value: Annotated[NotRequired[Annotated[int, add]], maximum]


class OneValue(TypedDict):
    value: Annotated[int, one_value]


class Later(TypedDict):
    value: Annotated[int, later]


class Hidden(TypedDict):
    value: Annotated[list[int], append] | None


class HiddenDeeper(TypedDict):
    value: dict[str, list[Annotated[int, add]]]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (TwoReducers, "'value' is annotated with more than one reducer"),
        (TwoApart, "'value' is annotated with more than one reducer"),
        (OneValue, "the reducer 'one_value' of 'value' must take two values"),
        (Later, "the reducer 'later' of 'value' must not be async"),
        (Hidden, "the reducer of 'value' must be outermost"),
        (HiddenDeeper, "the reducer of 'value' must be outermost"),
    ],
)
def test_a_reducer_that_cannot_work_is_refused(state: Any, message: str) -> None:
    assert message in refusal(state)


class Words:
    """An extra that is callable, and no reducer."""

    def __call__(self, value: object) -> bool:
        return bool(value)


class WithWords(TypedDict):
    value: Annotated[int, Words(), "text", int, 5]


def test_other_extras_of_an_annotation_mean_nothing() -> None:
    assert schema_of(WithWords).channels["value"].reducer is LAST


def test_a_typed_dict_is_presented_as_a_new_dict() -> None:
    schema = schema_of(Plain)
    values = {"topic": "walls"}
    assert schema.present(values) == values
    assert schema.present(values) is not values
    assert schema.initial() == {"notes": []}


def test_a_key_of_a_typed_dict_may_be_without_a_value() -> None:
    assert schema_of(Plain).missing({}) == []


def test_an_input_is_a_mapping_of_channels() -> None:
    assert schema_of(Plain).read_input({"topic": "a"}) == {"topic": "a"}


def test_an_input_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="the input has 'topik', <int>, which Plain does not"
    ) as caught:
        schema_of(Plain).read_input({"topik": "a", 1: 2})
    assert "'topic', 'notes', 'score', 'best'" in str(caught.value)


def test_an_input_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the input must be a dict or Plain, not list"):
        schema_of(Plain).read_input(["topic"])


def test_values_are_checked_only_where_no_reducer_decides() -> None:
    channels = schema_of(Plain).channels
    assert channels["topic"].classes == (str,)
    assert channels["notes"].classes is None
    assert channels["notes"].info() == ChannelInfo("notes", "list[str]", "append", True)


T = TypeVar("T")


class Typed(TypedDict, Generic[T]):
    value: T


def test_a_generic_state_takes_anything_for_its_parameter() -> None:
    assert schema_of(Typed).channels["value"].classes is None


def test_merging_starts_from_an_empty_dict() -> None:
    class State(TypedDict):
        table: Annotated[dict[str, int], merge]

    assert schema_of(State).initial() == {"table": {}}
