"""States that are dataclasses: fields, defaults, and those that cannot be made from them."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, Final

import pytest

from milecastle import add, append, union
from tests.unit.graph.checking import infos, refusal, schema_of


@dataclass
class Record:
    topic: str
    notes: Annotated[list[str], append]
    count: int = 3
    tags: set[str] = field(default_factory=set[str])
    seen: Annotated[set[str], union] = field(default_factory=lambda: {"seed"})
    kind: ClassVar[str] = "record"
    fixed: Final[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    count: int = 0
    total: Annotated[int, add] = 0


@dataclass
class Child(Record):
    more: int = 0


def test_each_field_of_a_dataclass_is_a_channel() -> None:
    assert infos(Record) == {
        "topic": ("str", "last", False),
        "notes": ("list[str]", "append", True),
        "count": ("int", "last", True),
        "tags": ("set[str]", "last", True),
        "seen": ("set[str]", "union", True),
        "fixed": ("int", "last", True),
    }
    assert list(infos(Child)) == [*infos(Record), "more"]
    assert infos(Frozen) == {"count": ("int", "last", True), "total": ("int", "add", True)}


def test_defaults_are_made_again_each_time() -> None:
    schema = schema_of(Record)
    one, other = schema.initial(), schema.initial()
    assert one == {"notes": [], "count": 3, "tags": set(), "seen": {"seed"}, "fixed": 1}
    assert one["tags"] is not other["tags"]
    assert one["notes"] is not other["notes"]


def test_a_dataclass_is_presented_as_itself() -> None:
    schema = schema_of(Frozen)
    assert schema.present({"count": 1, "total": 2}) == Frozen(count=1, total=2)
    assert schema.fields_of(Frozen(count=1, total=2)) == {"count": 1, "total": 2}


@dataclass
class Unset:
    topic: str
    size: int = field(init=False)


@dataclass
class NeedsMore:
    topic: str
    seed: InitVar[int]


@dataclass(init=False)
class OwnConstructor:
    topic: str

    def __init__(self) -> None:
        self.topic = ""


@pytest.mark.parametrize("state", [Unset, NeedsMore, OwnConstructor])
def test_a_dataclass_that_cannot_be_made_from_its_fields_is_refused(state: Any) -> None:
    assert f"{state.__name__} cannot be constructed from its fields alone" in refusal(state)


class Falsy:
    def __call__(self) -> int:
        return 7

    def __len__(self) -> int:
        return 0


@dataclass
class FalsyDefault:
    value: int = field(default_factory=Falsy())


def test_a_factory_that_is_falsy_is_still_a_factory() -> None:
    assert schema_of(FalsyDefault).initial() == {"value": 7}


def test_a_channel_that_was_added_since_gets_its_default() -> None:
    schema = schema_of(Record)
    values: dict[str, Any] = {
        "topic": "a",
        "notes": [],
        "tags": set[str](),
        "seen": set[str](),
        "fixed": 1,
    }
    assert schema.complete(values) == values | {"count": 3}
    complete = values | {"count": 5}
    assert schema.complete(complete) is complete


def test_field_without_a_value_is_reported() -> None:
    assert schema_of(Record).missing({"topic": "a"}) == ["notes", "count", "tags", "seen", "fixed"]


def test_an_input_may_be_the_state_itself_or_some_of_its_fields() -> None:
    assert schema_of(Frozen).read_input(Frozen(count=2)) == {"count": 2, "total": 0}
    assert schema_of(Frozen).read_input({"count": 2}) == {"count": 2}
