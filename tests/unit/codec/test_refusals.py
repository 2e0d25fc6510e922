"""Everything outside the domain is refused, with its path, its type and a hint."""

from __future__ import annotations

import io
import socket
import threading
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, timezone, tzinfo
from enum import Enum
from functools import cached_property
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest

from milecastle.codec.bounds import MAX_INT_BYTES
from milecastle.errors import CodecError, UnserializableState
from tests.unit.codec.domain import Colour, Doc, Pair, Point, make_codec

CODEC = make_codec()


class MyInt(int): ...


class MyStr(str):
    __slots__ = ()


class MyList(list[int]): ...


class Stranger(Enum):
    A = 1


@dataclass
class Undeclared:
    x: int


class Anything: ...


class Own(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, dt: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, dt: datetime | None) -> str:
        return "own"


class Named(NamedTuple):
    x: int


def refused(value: object, path: str = "$") -> UnserializableState:
    with pytest.raises(UnserializableState) as caught:
        CODEC.encode(value, path=path)
    return caught.value


STRANGE: list[tuple[Any, str]] = [
    (MyInt(1), "convert it with int(...)"),
    (MyStr("secret"), "convert it with str(...)"),
    (MyList([1]), "convert it with list(...)"),
    (OrderedDict(a=1), "convert it with dict(...)"),
    (defaultdict(int), "convert it with dict(...)"),
    (Named(1), "convert it with tuple(...)"),
    (deque([1]), "convert it with list(...)"),
    (range(3), "convert it with list(...)"),
    (memoryview(b"x"), "convert it with bytes(...)"),
    (MappingProxyType({}), "convert it with dict(...)"),
    (PurePosixPath("/x"), "register_type(PurePosixPath, to_plain=..., from_plain=...)"),
    (Stranger.A, "milecastle.register_type(Stranger)"),
    (Undeclared(1), "milecastle.register_type(Undeclared)"),
    (Anything(), "register_type(Anything, to_plain=..., from_plain=...)"),
    (threading.Lock(), "store an id or a path instead"),
    (threading.Event(), "store an id or a path instead"),
    (io.BytesIO(), "store an id or a path instead"),
    (len, "store a name instead"),
    (refused, "store a name instead"),
    (Anything, "store a name instead"),
    (io, "store a name instead"),
    ((n for n in [1]), "store a name instead"),
    (ZoneInfo("UTC"), "store the name of the zone"),
    (..., "register_type(ellipsis"),
    (msgspec.msgpack.Ext(20, b"\x90"), "register_type(Ext"),
    (msgspec.Raw(b"\x01"), "register_type(Raw"),
]


@pytest.mark.parametrize(("value", "hint"), STRANGE, ids=lambda value: type(value).__name__)
def test_a_strange_value_is_refused_with_a_hint(value: object, hint: str) -> None:
    error = refused({"docs": [1, {"lock": value}]})
    assert error.path == "$.docs[1].lock"
    assert hint in str(error)
    assert type(value).__qualname__ in error.type_name
    assert "secret" not in str(error)
    assert isinstance(error, CodecError)
    for holder in ([value], (value,), {"k": value}, Pair(value), Doc("t", value)):
        refused(holder)


def test_a_socket_is_refused() -> None:
    with socket.socket() as open_socket:
        assert "store an id or a path" in str(refused([open_socket]))


def test_a_path_names_every_kind_of_container() -> None:
    bad = Anything()
    assert refused(bad, "$.state").path == "$.state"
    assert refused([0, (1, bad)]).path == "$[1][1]"
    assert refused({"a b": bad}).path == "$['a b']"
    assert refused({"x" * 100: bad}).path == f"$['{'x' * 75}...']"
    assert refused({"é\n": bad}).path == "$['\\xe9\\n']"
    assert refused({1: bad}).path == "$[<int>]"
    assert refused({(1, 2): bad}).path == "$[<tuple>]"
    assert refused({"s": {bad}}).path == "$.s{item}"
    assert refused({(1, bad): 1}).path == "${key}[1]"
    assert refused(Doc("t", [bad])).path == "$.body[0]"
    assert refused(Pair(1, bad)).path == "$.right"
    assert refused(Point(1.0, {"k": bad})).path == "$.y.k"


@pytest.mark.parametrize("zone", [ZoneInfo("Europe/Rome"), Own()])
def test_a_zone_that_needs_a_database_is_refused_with_a_way_out(zone: tzinfo) -> None:
    assert "astimezone" in str(refused([datetime(2024, 1, 1, tzinfo=zone)]))
    assert "astimezone" in str(refused([time(1, tzinfo=zone)]))


def test_a_zone_whose_name_is_not_text_is_refused() -> None:
    zone = timezone(timedelta(hours=1), "\ud800")
    assert "not valid text" in str(refused(datetime(2024, 1, 1, tzinfo=zone)))


def test_an_int_over_the_limit_is_refused() -> None:
    largest = (1 << (MAX_INT_BYTES * 8 - 1)) - 1
    assert CODEC.decode(CODEC.encode(largest)) == largest
    assert "over the limit" in str(refused([largest + 1]))


def test_dataclass_with_an_attribute_that_is_not_a_field_is_refused() -> None:
    value: Any = Doc("t")
    value.secret = 1
    assert "its attribute 'secret' is not a field" in str(refused([value]))


class HasSlot:
    __slots__ = "hidden"
    hidden: int


@dataclass(slots=True)
class Slotted(HasSlot):
    x: int


def test_slot_that_is_not_a_field_is_refused_once_it_is_set() -> None:
    codec = make_codec(Slotted)
    value: Any = Slotted(1)
    assert codec.decode(codec.encode(value)) == value
    value.hidden = 2
    with pytest.raises(UnserializableState, match="'hidden' is not a field"):
        codec.encode(value)


@dataclass
class Cached:
    x: int

    @cached_property
    def double(self) -> int:
        return self.x * 2


def test_a_cached_property_is_left_out() -> None:
    codec = make_codec(Cached)
    value = Cached(2)
    assert value.double == 4
    assert codec.decode(codec.encode(value)) == Cached(2)


@dataclass
class Late:
    x: int = field(init=False)


def test_a_field_that_was_never_set_is_refused() -> None:
    with pytest.raises(UnserializableState, match="never set"):
        make_codec(Late).encode(Late())


class Setter:
    def __get__(self, instance: object, owner: type) -> int:
        return 1

    def __set__(self, instance: object, value: int) -> None: ...


@dataclass
class Described:
    x: Setter = Setter()


def test_a_field_that_is_a_descriptor_is_refused_both_ways() -> None:
    codec = make_codec(Described)
    with pytest.raises(UnserializableState, match="'x' is a descriptor"):
        codec.encode(Described())
    body = msgspec.msgpack.encode(["Described", {"x": 1}])
    with pytest.raises(CodecError, match="is a descriptor"):
        codec.decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(30, body)))


@dataclass
class ListLike(list[int]):
    x: int = 0


def test_a_dataclass_with_hidden_content_is_not_storable() -> None:
    with pytest.raises(UnserializableState):
        make_codec(ListLike).encode(ListLike())


def test_the_error_is_raised_for_the_value_and_not_its_copy() -> None:
    error = refused([Colour.RED, Stranger.A])
    assert error.path == "$[1]"
    assert error.type_name.endswith(".Stranger")
