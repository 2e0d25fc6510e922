"""Equality that sees what ``==`` does not: exact types, NaN, -0.0, fold, order of keys."""

from __future__ import annotations

import dataclasses
import struct
import sys
from datetime import datetime, time
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, cast

import msgspec


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same to every eye."""
    if type(a) is not type(b):
        return False
    for kinds, compare in _COMPARISONS:
        if isinstance(a, kinds):
            return bool(compare(a, b))
    return bool(a == b)


def _same_member(a: Enum, b: Enum) -> bool:
    """Flags of no member are made anew each time by Python 3.11.2."""
    return a is b or (isinstance(a, Flag) and a == b)


def _same_bits(a: float, b: float) -> bool:
    return struct.pack(">d", a) == struct.pack(">d", b)


def _same_complex(a: complex, b: complex) -> bool:
    return _same_bits(a.real, b.real) and _same_bits(a.imag, b.imag)


def _same_decimal(a: Decimal, b: Decimal) -> bool:
    return a.as_tuple() == b.as_tuple()


def _same_clock(a: datetime | time, b: datetime | time) -> bool:
    zones = (a.tzinfo is None) == (b.tzinfo is None) and a.tzname() == b.tzname()
    return zones and a.fold == b.fold and a.isoformat() == b.isoformat()


def _same_items(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def _same_dict(a: dict[object, object], b: dict[object, object]) -> bool:
    return _same_items(list(a), list(b)) and _same_items(list(a.values()), list(b.values()))


def _same_set(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)


def _same_struct(a: Any, b: Any) -> bool:
    return _same_items(msgspec.structs.astuple(a), msgspec.structs.astuple(b))


_COMPARISONS: list[tuple[Any, Any]] = [
    (Enum, _same_member),
    (float, _same_bits),
    (complex, _same_complex),
    (Decimal, _same_decimal),
    ((datetime, time), _same_clock),
    ((list, tuple), _same_items),
    (dict, _same_dict),
    ((set, frozenset), _same_set),
    (msgspec.Struct, _same_struct),
]


def same_fields(a: Any, b: Any) -> bool:
    """The same for two dataclasses."""
    names = [field.name for field in dataclasses.fields(a)]
    return type(a) is type(b) and all(same(getattr(a, n), getattr(b, n)) for n in names)


def same_array(a: Any, b: Any) -> bool:
    """The same for two NumPy arrays."""
    numpy = cast("Any", sys.modules["numpy"])
    flags = ("c_contiguous", "f_contiguous")
    return (
        type(a) is type(b) is numpy.ndarray
        and a.dtype == b.dtype
        and a.shape == b.shape
        and all(getattr(a.flags, flag) == getattr(b.flags, flag) for flag in flags)
        and a.tobytes() == b.tobytes()
    )
