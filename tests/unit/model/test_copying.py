"""Copying a struct by the names of its fields."""

from __future__ import annotations

import msgspec
import pytest

from milecastle.support.copying import copied


class Source(msgspec.Struct):
    name: str
    count: int
    secret: str = "only here"


class Target(msgspec.Struct):
    name: str
    count: str


class Longer(Target, kw_only=True):
    place: str


def test_fields_of_the_same_name_are_copied_unless_given() -> None:
    assert copied(Target, Source("a", 7), count="seven") == Target("a", "seven")
    assert copied(Source, Source("a", 7)) == Source("a", 7)


def test_field_that_the_source_lacks_is_an_error() -> None:
    """Seen to fail: copied field by field, a forgotten field with a default was silently lost."""
    with pytest.raises(AttributeError, match="place"):
        copied(Longer, Source("a", 7), count="seven")
    assert copied(Longer, Source("a", 7), count="seven", place="b").place == "b"
