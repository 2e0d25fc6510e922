"""Choices and fields as declared: msgspec sorts them, and people were asked in that order."""

from __future__ import annotations

import enum
from typing import Literal, NotRequired, TypedDict

from milecastle.codec.answers import schema_of
from milecastle.server.pages.schema_forms import form_fields, parsed


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(TypedDict):
    street: str
    city: str


class Order(TypedDict):
    size: Literal["small", "medium", "large"]
    colour: Colour
    address: NotRequired[Address]
    count: Literal[3, 1, 2]


def test_fields_and_choices_are_in_the_order_of_their_types() -> None:
    fields = {one.name: one for one in form_fields(schema_of(Order))}
    assert [*fields] == ["size", "colour", "address", "count"]
    assert fields["size"].labels == ("small", "medium", "large")
    assert fields["colour"].labels == ("red", "blue")
    assert fields["count"].choices == ("3", "1", "2")
    schema = schema_of(Order)
    assert schema is not None
    assert [*schema["$defs"]["Address"]["properties"]] == ["street", "city"]
    assert schema["$defs"]["Order"]["required"] == ["size", "colour", "count"]


def test_choices_are_shown_without_quotes_and_sent_as_json() -> None:
    """Choices had the quotes of JSON."""
    schema = schema_of(Literal["no", "yes, 'all'"])
    (field,) = form_fields(schema)
    assert field.labels == ("no", "yes, 'all'")
    assert parsed(schema, {"": field.choices[1]}, schema) == "yes, 'all'"
    (mixed,) = form_fields({"enum": ["1", 1]})  # older msgspec refuses such a Literal
    assert set(mixed.labels) == {'"1"', "1"}
