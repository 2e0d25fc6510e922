"""Answers: a type as a schema, plain values held against it, and delivered in the type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from time import process_time
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field

from milecastle import END, START, InvalidAnswer, InvalidRequest, StateGraph, interrupt
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
        (Strict, {"name": "A", "more": 1}, r"\$\.more is not allowed"),
        (Small, 0, "at least 1"),
        (Small, 10, "at most 9"),
        (Open, 0, "more than 0"),
        (Open, 1, "less than 1"),
        (Word, "a", "as long as at least 2"),
        (Word, "abcde", "no longer than 4"),
        (Word, "AB", "of the form"),
        (Pair, [], "as long as at least 1"),
        (Pair, [1, 2, 3], "no longer than 2"),
        (int | str, None, "matches none of the 2 accepted forms"),
        (Address | None, 5, "matches none of the 2 accepted forms"),
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
    """Fails if the parts of ``allOf`` are not looked at, or a constant is not compared."""
    schema: dict[str, Any] = {"allOf": [{"type": "integer"}, {"minimum": 3}]}
    check_answer(4, schema)
    for answer in ("a", 2):
        with pytest.raises(InvalidAnswer):
            check_answer(answer, schema)
    check_answer(5, schema | {"const": 5})
    with pytest.raises(InvalidAnswer):
        check_answer(4, schema | {"const": 5})


def test_a_type_that_has_no_schema_is_refused_when_it_is_asked_for() -> None:
    with pytest.raises(InvalidRequest, match="answers can be validated against"):
        schema_of(object())


def test_an_answer_is_plain_data() -> None:
    assert as_plain(Model(name="Ada")) == {"name": "Ada", "age": 0}
    assert as_plain(Address("Wall")) == {"street": "Wall", "number": 1}
    with pytest.raises(InvalidAnswer, match="plain data"):
        as_plain(object())


@pytest.mark.parametrize("wanted", [int, Model])
def test_answer_of_a_wrong_type_is_reported_without_its_value(wanted: Any) -> None:
    with pytest.raises(
        InvalidAnswer, match=f"the answer is not a valid {wanted.__name__}: "
    ) as raised:
        deliver("secret", wanted)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("^[a-z]+$", "abc", "aBc"),
        (r"^\d{3}-\d{2,4}$", "123-4567", "123-4"),
        (r"^[^@\s]+@[\w.-]+\.[a-z]{2,}$", "ada@example.org", "ada@example"),
        ("b.?d", "a bad day", "a boot"),
        (r"\[x\]", "[x]", "x"),
        ("^a?b?c?d?e?$", "ace", "x" * 100),
        ("^a*a*b$", "a" * 998 + "b", "a" * 999),
        ("^" + "a{0,9}" * 6 + "$", "a" * 54, "a" * 55),
    ],
)
def test_pattern_of_characters_and_repeats_is_checked(
    pattern: str, fits: str, does_not: str
) -> None:
    """The last two have just as many ways as are tried: a million.

    Tried: ``may_match`` always true. Fails if ``?`` counts as more than two ways, or a pattern as
    more than it has.
    """
    check_answer(fits, {"type": "string", "pattern": pattern})
    with pytest.raises(InvalidAnswer, match="of the form"):
        check_answer(does_not, {"type": "string", "pattern": pattern})


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        ("^(a+)+$", "a" * 30 + "!"),
        ("^(a|a)*$", "a" * 30 + "!"),
        ("^(?:a?){28}a{28}$", "a" * 27 + "!"),
        ("a*a*a*a*a*a*b", "a" * 300),
        ("[ab]*[ab]*[ab]*[ab]*[ab]*c", "ab" * 150),
        ("^(a", "a"),
        ("a{99999999999}", "a"),
        ("(" * 2000 + ")" * 2000, "a"),
    ],
)
def test_stored_pattern_cannot_keep_the_process_busy(pattern: str, answer: str) -> None:
    """Its type decides on delivery. Tried: ``re.search`` whatever the pattern."""
    began = process_time()
    check_answer(answer, {"type": "string", "pattern": pattern})
    assert process_time() - began < 5


def test_stored_schema_cannot_keep_the_process_busy() -> None:
    """References that double at each level, or never end. Tried: no ``_Root.count``."""
    doubling: dict[str, Any] = {
        str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(20)
    }
    schema = {"$ref": "#/$defs/0", "$defs": {**doubling, "20": {"type": "string"}}}
    began = process_time()
    with pytest.raises(InvalidAnswer, match="comparisons"):
        check_answer(7, schema)
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}
    with pytest.raises(InvalidAnswer, match="refers to itself endlessly"):
        check_answer(7, endless)
    assert process_time() - began < 60


def test_answer_that_only_the_type_can_check_is_refused_on_delivery() -> None:
    """The question is open again, as for any other answer that does not fit."""
    fussy = Annotated[str, msgspec.Meta(pattern="^(ab|cd)+$")]

    class Said(TypedDict):
        said: str

    def ask(state: Said) -> dict[str, Any]:
        return {"said": interrupt("what?", answer=fussy)}

    graph: StateGraph[Said] = StateGraph(Said)
    graph.add_node("ask", ask)
    graph.add_edges(START, "ask", END)
    app = graph.compile(store="memory://")
    app.invoke({"said": ""}, "t")
    with pytest.raises(InvalidAnswer):
        app.resume("t", "xy")
    assert app.state("t").status == "interrupted"
    assert app.resume("t", "abcd").state == {"said": "abcd"}


def test_a_stored_schema_may_leave_members_open_or_close_them() -> None:
    """Fails if more is refused than the schema says, or a list that is too long is accepted."""
    known = {"type": "object", "properties": {"a": {"type": "integer"}}}
    check_answer({"a": 1, "more": "x"}, known)
    first = {"type": "array", "prefixItems": [{"type": "integer"}]}
    check_answer([1, "anything"], first)
    with pytest.raises(InvalidAnswer, match=r"\$ should be no longer than 1"):
        check_answer([1, 2], {**first, "items": False})


class Odd:
    """A type with its own idea of what fits."""

    @classmethod
    def model_validate(cls, value: object) -> Odd:
        raise ValueError(f"not {value}")


def test_a_type_that_says_no_more_than_no_does_not_show_the_value() -> None:
    """Fails if the message of the type is repeated: it may hold the answer."""
    with pytest.raises(InvalidAnswer, match="not a valid Odd: refused") as caught:
        deliver("sekrit", Odd)
    assert "sekrit" not in str(caught.value)
