"""Answers: a type as a schema, plain values held against it, and delivered in the type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field

from milecastle import InvalidAnswer, InvalidRequest
from milecastle.codec.answers import as_plain, check_answer, deliver, schema_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    number: int = 1


class Order(TypedDict):
    items: list[str]
    address: Address


class Model(BaseModel):
    name: str = Field(min_length=2)
    age: int = 0


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    name: str


Small = Annotated[int, msgspec.Meta(ge=1, le=9)]
Open = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Word = Annotated[str, msgspec.Meta(min_length=2, max_length=4, pattern="^[a-z]+$")]
Pair = Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)]


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        (None, {"anything": [1, None]}),
        (Any, "anything"),
        (bool, True),
        (int, 3),
        (float, 2),
        (str, "yes"),
        (str | None, None),
        (list[int], [1, 2]),
        (dict[str, int], {"a": 1}),
        (tuple[int, str], [1, "a"]),
        (Literal["a", "b"], "b"),
        (Colour, "red"),
        (Address, {"street": "Wall"}),
        (Order, {"items": ["x"], "address": {"street": "Wall", "number": 2}}),
        (Model, {"name": "Ada"}),
        (Strict, {"name": "Ada"}),
        (Small, 9),
        (Open, 0.5),
        (Word, "abc"),
        (Pair, [1]),
        (int | str, "a"),
    ],
    ids=str,
)
def test_what_fits_is_taken_and_delivered(wanted: Any, answer: Any) -> None:
    check_answer(answer, schema_of(wanted))
    delivered = deliver(answer, wanted)
    check_answer(as_plain(delivered), schema_of(wanted))


@pytest.mark.parametrize(
    ("wanted", "answer", "says"),
    [
        (bool, "yes", r"\$ should be boolean, not string"),
        (bool, 1, "should be boolean"),
        (int, True, "should be integer"),
        (int, 1.5, "should be integer"),
        (list[int], [1, "a"], r"\$\[1\] should be integer"),
        (dict[str, int], {"a": "b"}, r"\$\.a should be integer"),
        (tuple[int, str], [1, "a", 2], "no longer than"),
        (Literal["a", "b"], "c", "one of 2 choices"),
        (Colour, "green", "one of 2 choices"),
        (Address, {}, r"\$\.street is missing"),
        (Order, {"items": [], "address": {"street": 1}}, r"\$\.address\.street"),
        (Model, {"name": "A"}, "as long as at least 2"),
        (Strict, {"name": "A", "more": 1}, r"\$\.more is not known"),
        (Small, 0, "at least 1"),
        (Small, 10, "at most 9"),
        (Open, 0, "more than 0"),
        (Open, 1, "less than 1"),
        (Word, "a", "as long as at least 2"),
        (Word, "abcde", "no longer than 4"),
        (Word, "AB", "of the form"),
        (Pair, [], "as long as at least 1"),
        (Pair, [1, 2, 3], "no longer than 2"),
        (int | str, None, "fits none of the 2 forms"),
        (Address | None, 5, "fits none of the 2 forms"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_its_path(wanted: Any, answer: Any, says: str) -> None:
    with pytest.raises(InvalidAnswer, match=says):
        check_answer(answer, schema_of(wanted))


def test_a_refusal_never_shows_the_value() -> None:
    with pytest.raises(InvalidAnswer) as caught:
        check_answer("a secret", schema_of(int))
    assert "secret" not in str(caught.value)


def test_a_schema_may_be_made_of_parts() -> None:
    schema = {"allOf": [{"type": "integer"}, {"minimum": 3}], "const": 5}
    check_answer(5, schema)
    for answer in ("a", 2, 4):
        with pytest.raises(InvalidAnswer):
            check_answer(answer, schema)


def test_a_type_that_has_no_schema_is_refused_when_it_is_asked_for() -> None:
    with pytest.raises(InvalidRequest, match="answers can be checked against"):
        schema_of(object())


def test_an_answer_is_plain_data() -> None:
    assert as_plain(Model(name="Ada")) == {"name": "Ada", "age": 0}
    assert as_plain(Address("Wall")) == {"street": "Wall", "number": 1}
    with pytest.raises(InvalidAnswer, match="plain data"):
        as_plain(object())


@pytest.mark.parametrize("wanted", [int, Model])
def test_an_answer_that_its_type_refuses_is_told_without_its_value(wanted: Any) -> None:
    with pytest.raises(InvalidAnswer, match=f"the answer is no {wanted.__name__}: ") as raised:
        deliver("secret", wanted)
    assert "secret" not in str(raised.value)
