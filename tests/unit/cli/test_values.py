"""States as JSON for people, and as source for tests."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import uuid
from dataclasses import dataclass
from typing import Any

import click
import msgspec
import numpy as np
import pydantic
import pytest

from milecastle import InvalidRequest
from milecastle.cli.literals import Source
from milecastle.cli.values import as_json, parse_loosely, parse_object


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int


class Model(pydantic.BaseModel):
    x: int


class Struct(msgspec.Struct):
    x: int


WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (2**80, str(2**80)),
        (1.5, "1.5"),
        (float("nan"), '"nan"'),
        (float("-inf"), '"-inf"'),
        ("é", '"é"'),
        ("\ud800", '"\\ud800"'),
        ((1, 2), "[1, 2]"),
        ({3, 1, 2}, "[1, 2, 3]"),
        ({1: "a", (1, 2): "b", None: "c"}, '{"1": "a", "[1, 2]": "b", "null": "c"}'),
        (Colour.RED, '"red"'),
        (Point(1), '{"x": 1}'),
        (Model(x=1), '{"x": 1}'),
        (Struct(1), '{"x": 1}'),
        (np.array([1, 2]), "[1, 2]"),
        (b"ab", '"YWI="'),
        (WHEN, '"2026-01-02T03:04:05Z"'),
        (decimal.Decimal("1.50"), '"1.50"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (range(3), '"<builtins.range>"'),
    ],
)
def test_every_value_has_its_json(value: Any, text: str) -> None:
    assert as_json(value) == text
    json.loads(as_json({"nested": [value]}, indent=2))


def test_what_is_typed_is_json_or_text() -> None:
    assert [parse_loosely(text) for text in ("5", '"5"', "yes", "[1")] == [5, "5", "yes", "[1"]
    assert parse_object('{"a": 1}', "--input") == {"a": 1}
    with pytest.raises(click.UsageError, match="must be a JSON object"):
        parse_object("5", "--input")


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "x", b"y", True], (1,): {2, 3}},
        [float("inf")],
        frozenset({1}),
        frozenset[int](),
        set[int](),
        (),
        (1, 2),
        {"long": ["word" * 10] * 5, "more": {"deep": ["text" * 20, "text" * 20]}},
        WHEN,
        dt.date(2026, 1, 2),
        dt.timedelta(days=1),
        decimal.Decimal("1.50"),
        uuid.UUID(int=1),
        Colour.RED,
        Point(1),
        [Point(2), {"p": Point(3)}],
    ],
)
def test_source_makes_the_same_value_again(value: Any) -> None:
    source = Source()
    text = source.of(value)
    names: dict[str, Any] = {}
    exec("\n".join(sorted(source.imports)), names)
    names |= {"Colour": Colour, "Point": Point}
    assert eval(text, names) == value


def test_what_cannot_be_written_is_named_by_its_path() -> None:
    @dataclass
    class Hidden:
        x: int

    with pytest.raises(InvalidRequest, match=r"\$\.a\[0\] is Model"):
        Source().of({"a": [Model(x=1)]})
    with pytest.raises(InvalidRequest, match="no module has at its top"):
        Source().of(Hidden(1))
