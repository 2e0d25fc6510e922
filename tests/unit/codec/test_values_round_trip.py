"""Everything in the domain comes back exactly."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.codec import domain
from tests.unit.codec.domain import Colour, Counted, Doc, Mode, Pair, Point, Right, make_codec
from tests.unit.codec.sameness import same, same_fields

CODEC = make_codec()
T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    content: T


def there_and_back(value: Any) -> Any:
    return CODEC.decode(CODEC.encode(value))


@given(domain.values)
def test_every_value_comes_back_the_same(value: object) -> None:
    assert same(there_and_back(value), value)


@given(domain.plain)
def test_plain_data_comes_back_the_same(value: object) -> None:
    assert same(there_and_back(value), value)


@given(domain.values)
def test_equal_values_have_equal_bytes_and_bytes_are_stable(value: object) -> None:
    data = CODEC.encode(value)
    assert data == make_codec().encode(value)
    assert data == CODEC.encode(CODEC.decode(data))


@given(domain.plain)
def test_plain_data_without_oddities_is_bare_msgpack(value: object) -> None:
    try:
        bare = msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return
    assert CODEC.encode(value) == bare


@given(st.text(), domain.values, domain.values)
def test_dataclasses_come_back_the_same(title: str, one: object, two: object) -> None:
    for value in (Doc(title, one, ["a"]), Point(1.5, two)):
        assert same_fields(there_and_back(value), value)


ODD: list[Any] = [
        1.0, True, 1, -0.0, 0.0, float("inf"), float("-inf"),
        struct.unpack(">d", bytes.fromhex("7ff0000000000001"))[0],
        struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0],
        2**64, -(2**63) - 1, 10**5000, "\ud800", "a\x00b", "\u2028", b"", bytearray(b"x"), 1j,
        Decimal("-0E+3"), Decimal("sNaN12"), Decimal("-NaN"), Decimal("1.10"), Decimal("Infinity"),
        (), set(), frozenset(), [], {}, {"b": 1, "a": 2}, {(1, "x"): [1]}, {2**70: 1},
        {"\ud800": 1}, {None: 1, b"k": 2, 1.5: 3}, Right.READ | Right.WRITE, Mode(64),
        Colour.CRIMSON, {Colour.RED: Colour.BLUE}, {frozenset({(1,)}): {1, (2,)}},
        domain.MOMENT, Pair(1), Pair(1, (2,)), msgspec.UNSET,
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_an_odd_value_comes_back_the_same(value: object) -> None:
    for held in (value, [value], {"k": value}, (value,)):
        assert same(there_and_back(held), held)


@pytest.mark.parametrize("odd", [1, (1,), 2**70, "\ud800", [1], {"k": (1,)}])
@pytest.mark.parametrize("row", [{"a": 1, "b": "x"}, [1, "x"], {(1,): 2}, {"a": [1]}, "x"])
def test_a_table_comes_back_the_same_whatever_one_cell_holds(row: Any, odd: object) -> None:
    rows: list[object] = [row] * 20
    last: object = {"a": odd} if isinstance(row, dict) else [odd]
    for table in (rows, [*rows, last], [*rows, odd]):
        assert same(there_and_back(table), table)
        keyed = dict(enumerate(table))
        assert same(there_and_back(keyed), keyed)


LOOK_ALIKES: list[object] = [
    {"__type__": "Doc", "title": "x"},
    {"$ext": 30, "data": b"\x92"},
    {"__ext__": [20, b"\x90"]},
    ["Doc", {"title": "x", "body": None, "tags": []}],
    [30, "Doc"],
    msgspec.msgpack.encode(msgspec.msgpack.Ext(20, b"\x90")),
    b"\xd6\xff\x00\x00\x00\x01",
    {"__class__": "builtins.eval", "args": ["1"]},
]


@pytest.mark.parametrize("value", LOOK_ALIKES, ids=str)
def test_data_that_looks_like_a_tag_stays_data(value: object) -> None:
    assert same(there_and_back(value), value)
    assert same(there_and_back((value, Doc("d"))), (value, Doc("d")))


def test_sets_have_the_same_bytes_whatever_their_order() -> None:
    forward = {f"item {number}" for number in range(500)}
    backward = {f"item {number}" for number in reversed(range(500))}
    assert CODEC.encode(forward) == CODEC.encode(backward)
    assert CODEC.encode({(1, 2), (3,), 4}) == CODEC.encode({4, (3,), (1, 2)})


def test_order_of_keys_is_preserved() -> None:
    value = {str(key): (key,) for key in reversed(range(50))}
    assert list(there_and_back(value)) == list(value)


def test_decoding_a_dataclass_does_not_run_its_post_init() -> None:
    value = Counted("yes")
    value.name, value.count = "no", 9
    back = there_and_back(value)
    assert same_fields(back, value)


def test_a_generic_dataclass_is_stored_without_its_typing_marks() -> None:
    codec = make_codec(Box[int])
    back: Any = codec.decode(codec.encode(Box[int](3)))
    assert back == Box(3)


def test_shared_parts_are_written_twice() -> None:
    shared = [1]
    back = there_and_back([shared, shared, (shared,)])
    assert back == [[1], [1], ([1],)]
    assert back[0] is not back[1]
