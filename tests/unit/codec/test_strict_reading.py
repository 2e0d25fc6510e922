"""What was stored must fit what the program declares now; foreign bytes are refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec.msgpack import Ext

from milecastle.codec import codes
from milecastle.errors import CodecError, UnserializableState
from tests.unit.codec.domain import Doc, Mode, make_codec

CODEC = make_codec()
pack = msgspec.msgpack.encode


def extension(code: int, *parts: object) -> bytes:
    return pack(Ext(code, pack(list(parts))))


def version(name: str, **fields: type) -> Any:
    return dataclass(type(name, (), {"__annotations__": fields}))


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"x": int, "z": int}, "no field 'y'; the stored value has no field 'z'"),
        ({"x": int}, "the class has no field 'y'"),
        ({"x": int, "y": int, "z": int}, "the stored value has no field 'z'"),
    ],
)
def test_a_field_renamed_removed_or_added_is_an_error_with_its_path(
    now: dict[str, type], message: str
) -> None:
    then = version("Item", x=int, y=int)
    data = make_codec(then).encode({"docs": [1, {"item": then(1, 2)}]})
    with pytest.raises(CodecError, match=r"\$\[key 0\]\[1\]\[key 0\] .*fields of Item") as caught:
        make_codec(version("Item", **now)).decode(data)
    assert message in str(caught.value)


def test_the_path_leads_through_objects_tuples_sets_and_pairs() -> None:
    then: Any = dataclass(frozen=True)(type("Item", (), {"__annotations__": {"x": int}}))
    holder = version("Holder", inside=object)
    now = version("Item", y=int)
    old, new = make_codec(then, holder), make_codec(now, holder)
    item: Any = then(1)
    for value, path in [
        (holder((0, item)), r"\$\.inside\[1\]"),
        ({(1, 2): item}, r"\$\[1\]"),
        ({item: 1}, r"\$\[0\]"),
        ([{item}], r"\$\[0\]\[0\]"),
    ]:
        with pytest.raises(CodecError, match=f"at {path} cannot"):
            new.decode(old.encode(value))


def test_a_type_that_changed_its_kind_is_an_error() -> None:
    class Item(enum.Enum):
        A = 1

    record = version(Item.__qualname__, x=int)
    record.__qualname__ = Item.__qualname__
    with pytest.raises(CodecError, match="has changed since"):
        make_codec(Item).decode(make_codec(record).encode(record(1)))
    with pytest.raises(CodecError, match="has changed since"):
        make_codec(record).decode(make_codec(Item).encode(Item.A))


def test_a_member_that_is_gone_is_an_error() -> None:
    for name, part in [("Colour", "GREEN"), ("Colour", 1), ("Right", 64), ("Right", "READ")]:
        with pytest.raises(CodecError, match=f"{name} has no such member now"):
            CODEC.decode(extension(codes.MEMBER, name, part))
    with pytest.raises(CodecError, match="no such member"):
        CODEC.decode(extension(codes.MEMBER, "Colour", []))


def test_a_combination_of_flags_does_not_run_the_users_missing() -> None:
    class Right(enum.Flag):
        A = 1
        B = 2

        @classmethod
        def _missing_(cls, value: object) -> Any:
            raise AssertionError("decoding must not come here")

    data = extension(codes.MEMBER, Right.__qualname__, 3)
    assert make_codec(Right).decode(data) is Right._value2member_map_[3]


def test_a_flag_that_ejects_is_an_error() -> None:
    class Bits(enum.Flag, boundary=enum.EJECT):
        A = 1

    with pytest.raises(CodecError, match="no such member"):
        make_codec(Bits).decode(extension(codes.MEMBER, Bits.__qualname__, 8))
    found = CODEC.decode(CODEC.encode(Mode(8)))
    assert (type(found), found) == (Mode, Mode(8))  # Python 3.11.2 makes it anew each time


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x01",
        b"\xa1\xff",
        b"\x81\x80\x01",
        b"\xdd\xff\xff\xff\xff\x01",
        pack(Ext(99, b"")),
        pack(Ext(-5, b"")),
        pack(Ext(codes.TUPLE, b"\x01")),
        pack(Ext(codes.TUPLE, b"")),
        pack(Ext(codes.TUPLE, b"\x81\xa1a\x01")),
        pack(Ext(codes.SET, b"\xa2ab")),
        pack(Ext(codes.INT, b"\x01" * 70_000)),
        pack(Ext(codes.UUID, b"short")),
        pack(Ext(codes.DECIMAL, b"x")),
        pack(Ext(codes.COMPLEX, b"x")),
        extension(codes.SET, []),
        extension(codes.PAIRS, 1),
        extension(codes.PAIRS, [], 1),
        extension(codes.DATETIME, 1, 2),
        extension(codes.DATETIME, 2024, 13, 1, 0, 0, 0, 0, 0, None),
        extension(codes.TIME, 1, 1, 1, 1, 0, [10**15]),
        extension(codes.RECORD, 1, {}),
        extension(codes.RECORD, "Doc", None),
        extension(codes.RECORD, "Doc", {1: 2}),
        extension(codes.RECORD, "Doc", [1]),
        extension(codes.RECORD, "Doc"),
        extension(codes.MEMBER, "Colour"),
    ],
)
def test_bytes_that_no_writer_wrote_are_refused(data: bytes) -> None:
    """Fails if the members of a map, or the letters of a text, become those of a tuple or set."""
    with pytest.raises(CodecError):
        CODEC.decode(data)


@pytest.mark.parametrize(
    "timestamp",
    [b"\xd6\xff" + b"\0" * 4, b"\xd7\xff" + b"\0" * 8, b"\xc7\x0c\xff" + b"\0" * 12],
)
def test_msgpack_timestamp_is_refused_wherever_it_is(timestamp: bytes) -> None:
    inside = b"\x92\x01" + timestamp
    objects = b"\x92\xa3Doc\x83\xa5title\xa1t\xa4body" + timestamp + b"\xa4tags\x90"
    for data in (
        timestamp,
        inside,
        b"\x81\xa1k" + timestamp,
        b"\x81" + timestamp + b"\x01",
        pack(Ext(codes.TUPLE, inside)),
        pack([1] * 300 + [Ext(codes.TUPLE, inside)]),
        pack(Ext(codes.RECORD, objects)),
    ):
        with pytest.raises(CodecError, match="timestamp"):
            CODEC.decode(data)


def test_bytes_that_only_look_like_a_timestamp_are_read() -> None:
    value = [b"\xd6\xff\xd7\xff\xc7\x0c\xff", ("x", b"\xd6\xff" + b"\0" * 4), Doc("t")]
    assert CODEC.decode(CODEC.encode(value)) == value


def test_messages_never_hold_a_value_of_the_state() -> None:
    secret = "hunter2"
    then = version("Item", x=str)
    data = make_codec(then).encode([then(secret)])
    with pytest.raises(CodecError) as caught:
        make_codec(version("Item", y=str)).decode(data)
    assert secret not in str(caught.value)
    with pytest.raises(UnserializableState) as refused:
        CODEC.encode({"k": [secret, object()]})
    assert secret not in str(refused.value)
    with pytest.raises(CodecError) as damaged:
        CODEC.decode(pack([secret, Ext(codes.DECIMAL, secret.encode())]))
    assert secret not in str(damaged.value)
    assert damaged.value.__cause__ is None
