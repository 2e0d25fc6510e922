"""Columns as PostgreSQL's arrays, in its binary form.

A group of batches is written by columns, and a claim's threads are read by columns. psycopg
would inspect each value's type; here it is known, and the work is done by iterators of the
standard library. In many columns all values are the same: these are packed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from struct import Struct

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSONB = 16, 17, 20, 21, 23, 25, 3802
BOOLS, BYTEAS, INT8S, INT2S, INT4S, TEXTS = 1000, 1001, 1016, 1005, 1007, 1009

_HEAD = Struct("!iiiii").pack
_EMPTY = Struct("!iii").pack
_LENGTH = Struct("!i").pack
_BOOL = Struct("!i?").pack
_INT2 = Struct("!ih").pack
_INT4 = Struct("!ii").pack
_INT8 = Struct("!iq").pack


def bools(values: Sequence[bool]) -> bytes:
    return _numbers(BOOL, _BOOL, 1, values)


def int2s(values: Sequence[int]) -> bytes:
    return _numbers(INT2, _INT2, 2, values)


def int4s(values: Sequence[int]) -> bytes:
    return _numbers(INT4, _INT4, 4, values)


def int8s(values: Sequence[int]) -> bytes:
    return _numbers(INT8, _INT8, 8, values)


def fixed(element: int, values: Sequence[bytes]) -> bytes:
    if _are_same(values):
        packed = (_LENGTH(len(values[0])) + values[0]) * len(values)
    else:
        sized = zip(map(_LENGTH, map(len, values)), values, strict=True)
        packed = b"".join(chain.from_iterable(sized))
    return _array(element, len(values), packed)


def texts(values: Sequence[bytes]) -> bytes:
    return fixed(TEXT, values)


def byteas(values: Sequence[bytes]) -> bytes:
    return fixed(BYTEA, values)


def _numbers(
    element: int, pack: Callable[[int, int], bytes], size: int, values: Sequence[int]
) -> bytes:
    if _are_same(values):
        packed = pack(size, values[0]) * len(values)
    else:
        packed = b"".join(map(pack, repeat(size), values))
    return _array(element, len(values), packed)


def _are_same(values: Sequence[object]) -> bool:
    return len(values) > 1 and values.count(values[0]) == len(values)


def _array(element: int, count: int, packed: bytes) -> bytes:
    if not count:
        return _EMPTY(0, 0, element)
    return _HEAD(1, 0, element, count, 1) + packed


class TextColumn(bytes):
    @classmethod
    def of(cls, values: Sequence[str]) -> TextColumn:
        return cls(texts([value.encode() for value in values]))


class ShardColumn(bytes):
    @classmethod
    def of(cls, values: Sequence[int]) -> ShardColumn:
        return cls(int2s(values))


class _Packed(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _TextsDumper(_Packed):
    oid = TEXTS


class _ShardsDumper(_Packed):
    oid = INT2S


def accept_columns(adapters: AdaptersMap) -> None:
    adapters.register_dumper(TextColumn, _TextsDumper)
    adapters.register_dumper(ShardColumn, _ShardsDumper)
