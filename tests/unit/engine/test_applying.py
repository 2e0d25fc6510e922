"""Applying updates: what nodes returned meets the state."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import Command, InvalidUpdate, add, append, merge, messages, union
from milecastle.engine.applying import apply_update, apply_updates, prepared, read_update
from milecastle.graph.schema import StateSchema, read_schema


def join(old: str, new: str) -> str:
    return old + new


class State(TypedDict, total=False):
    n: int
    any: Any
    log: Annotated[list[str], append]
    by: Annotated[dict[str, int], merge]
    tags: Annotated[set[str], union]
    total: Annotated[int, add]
    own: Annotated[str, join]


@dataclass
class Card:
    title: str
    marks: Annotated[list[int], append] = field(default_factory=list[int])


SCHEMA = read_schema(State, {})
CARD = read_schema(Card, {})


def applied(
    update: dict[str, Any], values: dict[str, Any] | None = None, schema: StateSchema = SCHEMA
) -> tuple[dict[str, Any], bool, list[Any]]:
    values = dict(values or {})
    operations: list[Any] = []
    changed = apply_update(schema, values, "node", update, operations)
    return values, changed, operations


def test_a_plain_channel_is_overwritten_and_its_value_logged() -> None:
    assert applied({"n": 2}, {"n": 1}) == ({"n": 2}, True, [0, "n", 2])


def test_a_built_in_reducer_logs_the_update_in_its_own_type() -> None:
    values, changed, operations = applied(
        {"log": ("b",), "by": {"y": 2}, "tags": ["t"], "total": 5},
        {"log": ["a"], "by": {"x": 1}, "tags": {"s"}, "total": 1},
    )
    assert values == {"log": ["a", "b"], "by": {"x": 1, "y": 2}, "tags": {"s", "t"}, "total": 6}
    assert changed
    logged = dict(zip(operations[1::3], operations[2::3], strict=True))
    assert logged == {"log": ["b"], "by": {"y": 2}, "tags": {"t"}, "total": 5}


def test_a_reducer_of_the_user_logs_what_it_returned() -> None:
    assert applied({"own": "b"}, {"own": "a"}) == ({"own": "ab"}, True, [0, "own", "ab"])
    assert applied({"own": "b"}) == ({"own": "b"}, True, [0, "own", "b"])


def test_the_first_update_of_an_empty_channel() -> None:
    assert applied({"log": ["a"]})[0] == {"log": ["a"]}
    assert applied({"total": 3})[0] == {"total": 3}


def test_nothing_changes_when_the_value_is_equal() -> None:
    assert applied({"n": 1, "log": []}, {"n": 1, "log": []})[1] is False
    assert applied({}, {"n": 1})[1] is False


def test_a_mutable_value_handed_back_may_have_changed() -> None:
    thing = [1]
    assert applied({"any": thing}, {"any": thing})[1] is True
    assert applied({"any": "text"}, {"any": "text"})[1] is False


def test_a_value_that_cannot_be_compared_counts_as_changed() -> None:
    class Odd:
        def __hash__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth of this is ambiguous")

    assert applied({"any": Odd()}, {"any": Odd()})[1] is True


def test_without_a_log_no_operations_are_made() -> None:
    values = {"n": 1}
    assert apply_update(SCHEMA, values, "node", {"n": 2}, None)
    assert values == {"n": 2}


def test_updates_of_one_step_are_applied_in_order() -> None:
    values: dict[str, Any] = {"log": []}
    updates: list[tuple[str, dict[str, Any]]] = [
        ("a", {"log": ["a"]}),
        ("b", {"n": 1}),
        ("c", {"log": ["c"]}),
    ]
    assert apply_updates(SCHEMA, values, updates, None)
    assert values == {"log": ["a", "c"], "n": 1}
    assert not apply_updates(SCHEMA, values, [("a", {})], None)


def longest(old: list[str], new: list[str]) -> list[str]:
    return max(old, new, key=len)


class Found(TypedDict):
    log: Annotated[list[str], append]
    best: Annotated[list[str], longest]


@pytest.mark.parametrize("count", [3, 30])
def test_a_reducer_of_the_user_gets_each_update_however_many_there_are(count: int) -> None:
    """Fails if the lists of many updates are merged before a reducer that is not ``append``."""
    values: dict[str, Any] = {"log": [], "best": []}
    updates = [(f"work#{n}", {"log": [str(n)], "best": [str(n)] * 2}) for n in range(count)]
    assert apply_updates(read_schema(Found, {}), values, updates, None)
    assert values == {"log": [str(n) for n in range(count)], "best": ["0", "0"]}


def test_two_writers_of_a_plain_channel_are_refused() -> None:
    with pytest.raises(InvalidUpdate, match="'a' and 'b'") as caught:
        apply_updates(SCHEMA, {}, [("a", {"n": 1}), ("b", {"n": 1})], None)
    assert (caught.value.node, caught.value.key) == ("b", "n")
    with pytest.raises(InvalidUpdate, match="does not have"):
        apply_updates(SCHEMA, {}, [("a", {"x": 1}), ("b", {"x": 1})], None)


def test_what_a_node_may_return() -> None:
    assert read_update(SCHEMA, "node", {"n": 1}, {}) == {"n": 1}
    assert read_update(SCHEMA, "node", None, {}) == {}
    assert read_update(SCHEMA, "node", UserDict({"n": 1}), {}) == {"n": 1}
    with pytest.raises(InvalidUpdate, match="returned list"):
        read_update(SCHEMA, "node", [], {})


def test_a_returned_state_is_compared_with_the_values() -> None:
    marks = [1]
    values = {"title": "old", "marks": marks}
    given = Card("old", marks)
    given.title = "new"
    assert read_update(CARD, "node", given, values) == {"title": "new"}
    assert read_update(CARD, "node", Card("old", [1]), values) == {}
    with pytest.raises(InvalidUpdate, match="'marks' has a reducer"):
        read_update(CARD, "node", Card("old", [1, 2]), values)


class Chat(TypedDict):
    said: Annotated[list[Any], messages]


def test_messages_get_their_ids_in_whatever_carries_the_update() -> None:
    """Once, before it is stored. Fails if a ``Command`` is left as it is."""
    schema = read_schema(Chat, {})
    told: dict[str, Any] = {"said": [{"role": "user", "content": "hello"}]}
    plain = prepared(schema, told)
    assert plain["said"][0]["id"]
    command = prepared(schema, Command(update=told, goto="next"))
    assert command.update["said"][0]["id"]
    assert command.goto == "next"
    assert prepared(schema, None) is None
    assert "id" not in told["said"][0]
