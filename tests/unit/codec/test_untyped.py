"""Values read without their classes: shown by name and fields, and nothing is run for it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import UntypedCodec, ValueCodec
from milecastle.errors import CodecError


@dataclass(frozen=True)
class Point:
    x: int
    inner: Any = None


class Struct(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: int
    _hidden: int = pydantic.PrivateAttr(default=7)


class Colour(enum.Enum):
    RED = "red"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


KNOWN = ValueCodec(TypeRegistry([Point, Struct, Model, Colour, Access]))


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (Point(1), {"$type": "Point", "x": 1, "inner": None}),
        (Struct(2), {"$type": "Struct", "x": 2}),
        (Model.model_validate({"x": 3, "more": [4]}), {"$type": "Model", "x": 3, "more": [4]}),
        (Colour.RED, {"$type": "Colour", "value": "RED"}),
        (Access.READ | Access.WRITE, {"$type": "Access", "value": 3}),
        (
            [Point(1, inner=(Point(2), {"k": Struct(3)}))],
            [
                {
                    "$type": "Point",
                    "x": 1,
                    "inner": (
                        {"$type": "Point", "x": 2, "inner": None},
                        {"k": {"$type": "Struct", "x": 3}},
                    ),
                }
            ],
        ),
    ],
)
def test_objects_are_read_by_name_and_fields(value: Any, read: Any) -> None:
    """Seen to fail: `its type is not declared by the state`."""
    assert UntypedCodec().decode(KNOWN.encode(value)) == read


def test_objects_in_sets_and_keys_are_read() -> None:
    found: Any = UntypedCodec().decode(KNOWN.encode({Point(1), Point(2)}))
    assert sorted(point["x"] for point in found) == [1, 2]
    keyed: Any = UntypedCodec().decode(KNOWN.encode({Point(1): "a"}))
    assert [key["x"] for key in keyed] == [1]


def damaged(whole: bytes) -> Iterable[bytes]:
    yield from (whole[:end] for end in range(len(whole)))
    yield whole + b"\0"


def test_damage_is_still_found() -> None:
    codec = UntypedCodec()
    for data in damaged(KNOWN.encode([Point(1), Colour.RED])):
        with pytest.raises(CodecError):
            codec.decode(data)


def test_nesting_has_its_limit() -> None:
    deep = b"\xc0"
    for _ in range(5000):
        body = b"\x92\xa1P\x81\xa1x" + deep
        deep = b"\xc9" + len(body).to_bytes(4, "big") + b"\x1e" + body
    with pytest.raises(CodecError):
        UntypedCodec().decode(deep)
