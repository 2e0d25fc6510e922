"""Annotations: a type has one name in every spelling, and fitting classes are not a guess."""

# ruff: noqa: UP006, UP007, UP045, RUF036, PYI061 - spelling is what is tested
from __future__ import annotations

import collections.abc
import enum
import sys
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NewType, Optional, Protocol, TypedDict, TypeVar, Union

import pytest

from milecastle.graph.state_types import fitting_classes, type_name

T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = 1


class Doc(TypedDict):
    text: str


class Shape(Protocol):
    def area(self) -> float: ...


@typing.runtime_checkable
class Closable(Protocol):
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Optional[int], int | None),
        (Union[None, int], int | None),
        (Union[str, int], int | str),
        (typing.List[int], list[int]),
        (typing.List, list),
        (typing.Dict[str, typing.List[int]], dict[str, list[int]]),
        (typing.Tuple[int, ...], tuple[int, ...]),
        (typing.Sequence[int], collections.abc.Sequence[int]),
        (typing.Callable[[int], str], collections.abc.Callable[[int], str]),
        (Annotated[int, "words"], int),
        (list[Annotated[int, "words"]], list[int]),
        (Literal["a", "b"], Literal["b", "a"]),
        (Optional[typing.List[Optional[int]]], None | list[None | int]),
    ],
)
def test_a_type_has_one_name_in_every_spelling(one: Any, other: Any) -> None:
    assert type_name(one) == type_name(other)


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (int, "int"),
        (None, "None"),
        (Any, "Any"),
        (int | None, "int | None"),
        (Union[str, None, int], "int | str | None"),
        (dict[str, list[int]], "dict[str, list[int]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (collections.abc.Callable[[int, str], None], "Callable[[int, str], None]"),
        (collections.abc.Callable[..., int], "Callable[..., int]"),
        (Literal["a", 1, None, True], "Literal['a', 1, None, True]"),
        (Literal["ä\u0378"], "Literal['\\xe4\\u0378']"),
        (Literal[Color.RED], "Literal[Color.RED]"),
        (Doc, "Doc"),
        (UserId, "UserId"),
        (T, "T"),
        (list["Doc"], "list[Doc]"),
        (typing.List["Doc"], "list[Doc]"),
        (type[int], "type[int]"),
    ],
)
def test_the_name_of_a_type(annotation: Any, name: str) -> None:
    assert type_name(annotation) == name


def test_different_types_have_different_names() -> None:
    kinds: list[Any] = [
        int,
        str,
        list,
        list[int],
        list[str],
        int | None,
        Literal["a"],
        Literal["b"],
    ]
    assert len({type_name(kind) for kind in kinds}) == len(kinds)


def test_alias_is_named_after_the_type_that_it_names() -> None:
    class TypeAliasType:  # as Python 3.12 makes it for a `type` statement
        def __init__(self, value: Any) -> None:
            self.__value__ = value
            self.__name__ = "Json"

    json = TypeAliasType(int)
    assert type_name(json) == "int"
    assert fitting_classes(TypeAliasType(json)) == (int,)
    json.__value__ = dict[str, Any]
    assert type_name(list[json]) == "list[dict[str, Any]]"  # type: ignore[valid-type]
    json.__value__ = Union[str, "list[int]"]
    assert type_name(json) == "list[int] | str"
    itself: Any = TypeAliasType(None)
    itself.__value__ = dict[str, itself]
    assert type_name(itself) == "dict[str, Json]"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_a_real_alias_is_read_as_well() -> None:
    make: Any = getattr(typing, "TypeAliasType")  # noqa: B009 - not there on Python 3.11
    assert type_name(make("Names", list[str])) == "list[str]"
    assert fitting_classes(make("Names", list[str])) == (list,)


@pytest.mark.parametrize(
    ("annotation", "classes"),
    [
        (int, (int,)),
        (float, (float, int)),
        (complex, (complex, float, int)),
        (None, (type(None),)),
        (list[int], (list,)),
        (int | None, (int, type(None))),
        (float | int, (float, int)),
        (Annotated[str, "words"], (str,)),
        (Literal["a", "b", 1], (str, int)),
        (UserId, (int,)),
        (Doc, (dict, Mapping)),
        (Closable, (Closable,)),
        (Color, (Color,)),
    ],
)
def test_the_classes_that_fit(annotation: Any, classes: tuple[type, ...]) -> None:
    assert fitting_classes(annotation) == classes


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        object,
        T,
        Shape,
        int | Any,
        "Unresolved",
        typing.TextIO,
        typing.IO[str],
        typing.NoReturn,
    ],
)
def test_anything_fits_an_unknown_type(annotation: Any) -> None:
    assert fitting_classes(annotation) is None


def test_a_function_fits_a_callable() -> None:
    classes = fitting_classes(typing.Callable[[int], str])
    assert classes is None or isinstance(print, classes)
