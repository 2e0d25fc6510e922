"""States as JSON for people."""

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

from milecastle.cli.questions import parse_loosely, parse_object
from milecastle.views.values import as_json


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


def test_integers_that_python_does_not_write_are_hexadecimal() -> None:
    """Seen to fail with ValueError: the limit of 4,300 digits."""
    large = 1 << 40_000
    assert as_json(1 << 9000) == str(1 << 9000)
    assert as_json([large, {-large: 1}]) == f'["{large:#x}", {{"{-large:#x}": 1}}]'


def test_what_is_typed_is_json_or_text() -> None:
    assert [parse_loosely(text) for text in ("5", '"5"', "yes", "[1")] == [5, "5", "yes", "[1"]
    assert parse_object('{"a": 1}', "--input") == {"a": 1}
    with pytest.raises(click.UsageError, match="must be a JSON object"):
        parse_object("5", "--input")
