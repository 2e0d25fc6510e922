"""Strategies for everything that can be stored, and the types that the tests declare."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
from hypothesis import strategies as st

from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec


class Colour(enum.Enum):
    RED = "r"
    BLUE = ("b", 2)
    CRIMSON = "r"  # noqa: PIE796 - an alias, to be read as RED


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.IntFlag):
    A = 1
    B = 4


@dataclass
class Doc:
    title: str
    body: object = None
    tags: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: object


@dataclass
class Counted:
    name: str
    count: int = field(init=False, default=7)
    raised: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.name == "no":
            raise AssertionError("decoding must not come here")


class Pair(msgspec.Struct, frozen=True):
    left: object
    right: object = msgspec.UNSET


TYPES: list[Any] = [Colour, Level, Word, Right, Mode, Doc, Point, Counted, Pair]


def make_codec(*annotations: object) -> ValueCodec:
    """A codec for the given types; for all of this module's without any."""
    return ValueCodec(TypeRegistry.for_annotations(annotations or TYPES))


def _zone(seconds: int, microseconds: int) -> timezone:
    return timezone(timedelta(seconds=seconds, microseconds=microseconds))


def _named_zone(minutes: int, name: str) -> timezone:
    return timezone(timedelta(minutes=minutes), name)


_zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.builds(_zone, st.integers(-86_000, 86_000), st.sampled_from([0, 0, 1, 999_999])),
    st.builds(_named_zone, st.integers(-1439, 1439), st.text("abcDEF/", min_size=1)),
)


def _with_fold(moment: Any, zone: Any, fold: int) -> Any:
    return moment.replace(tzinfo=zone, fold=fold)


_fold = st.integers(0, 1)
_datetimes = st.builds(_with_fold, st.datetimes(), _zones, _fold)
_times = st.builds(_with_fold, st.times(), _zones, _fold)

text = st.text(st.characters(codec=None, exclude_categories=()), max_size=12) | st.sampled_from(
    ["\ud800", "a\udfffb", "\ud800\udc00", "\x00", "\u2028", "", "é", "𝄞"]
)
ints = (
    st.integers()
    | st.integers(-(2**63) - 2, -(2**63) + 2)
    | st.integers(2**64 - 2, 2**64 + 2)
    | st.integers(-(2**300), 2**300)
)
plain_scalars = (
    st.none() | st.booleans() | ints | st.floats(allow_nan=True) | text | st.binary(max_size=12)
)
members = st.sampled_from(
    [*Colour, *Level, *Word, *Right, *Mode, Right(0), Right(3), Mode(5), Mode(0), Mode(64)]
)
hashable_scalars = st.one_of(
    plain_scalars,
    st.complex_numbers(allow_nan=True),
    _datetimes,
    _times,
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
    members,
)
unhashable_scalars = st.one_of(
    st.binary(max_size=8).map(bytearray),
    st.decimals(allow_nan=True),
    st.just(msgspec.UNSET),
)
hashables = st.recursive(
    hashable_scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(hashables, inner, max_size=4),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.sets(hashables, max_size=4),
        st.builds(Pair, inner, inner),
    )


values = st.recursive(hashables | unhashable_scalars, _containers, max_leaves=20)
plain = st.recursive(
    plain_scalars,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(plain_scalars, inner, max_size=20),
    max_leaves=60,
)

MOMENT = datetime(2024, 10, 27, 2, 30, 0, 5, fold=1, tzinfo=timezone(timedelta(hours=1), "CET"))
