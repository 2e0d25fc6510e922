"""Values against the names of their types, as manifests have them."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal, TypedDict, cast

import pytest

from milecastle.graph.state_types import describe_types, type_name
from milecastle.graph.type_names import misfit_of


@dataclasses.dataclass
class Part:
    n: int
    names: list[str] = dataclasses.field(default_factory=list[str])


class SmallPart(Part):
    pass


class Box(TypedDict, total=False):
    part: Part


class Colour(enum.Enum):
    RED = 1


Odd = Literal["a, b]", "it's \"|", 3]


def found(value: object, annotation: Any) -> str | None:
    types = {one.name: one for one in describe_types([annotation])}
    misfit = misfit_of(value, type_name(annotation), types, "$.x")
    return None if misfit is None else " ".join(misfit)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (1, int),
        (True, int),
        (1, float),
        (None, int | None),
        ([[1], []], list[list[int]]),
        ((1, "a"), tuple[int, str]),
        ((1, 2, 3), tuple[int, ...]),
        ({"a": {1}}, dict[str, set[int]]),
        (Part(1, ["a"]), Part),
        (SmallPart(1), Part),
        ({"part": Part(1)}, Box),
        ({}, Box | None),
        (Colour.RED, Colour),
        ("a, b]", Odd),
        ("it's \"|", Odd),
        (3, Odd | str),
        (object(), Any),
        (1, "Unknown[int]"),
    ],
)
def test_value_that_matches_is_accepted(value: object, annotation: Any) -> None:
    assert found(value, annotation) is None


@pytest.mark.parametrize(
    ("value", "annotation", "misfit"),
    [
        ("a", int, "$.x str int"),
        (1.0, int, "$.x float int"),
        (None, int | str, "$.x NoneType int | str"),
        ([1, "a"], list[int], "$.x[1] str int"),
        ({"a": [None]}, dict[str, list[int]], "$.x[key 0][0] NoneType int"),
        ((1,), tuple[str, ...], "$.x[0] int str"),
        ({"n": 1}, Part, "$.x dict Part"),
        (Part(1, cast("Any", [2])), Part | None, "$.x.names[0] int str"),
        ({"part": {"n": 1}}, Box, "$.x.part dict Part"),
        ([{"n": 1}], list[Part], "$.x[0] dict Part"),
        (1, Colour, "$.x int Colour"),
        ("c", Literal["a", "b"], "$.x str Literal['a', 'b']"),
    ],
)
def test_value_that_does_not_match_is_found(value: object, annotation: Any, misfit: str) -> None:
    assert found(value, annotation) == misfit


def test_value_that_contains_itself_ends() -> None:
    value: list[Any] = []
    value.append(value)
    assert misfit_of(value, "Tree", {}, "$") is None
    assert misfit_of(value, "list", {}, "$") is None
