"""Scalars that msgpack does not have: how each is converted to an extension and back.

``WRITERS`` maps an exact type to a function returning data for msgpack; ``READERS``
maps an extension code to a function taking the body. A reader may raise any exception on
a body no writer wrote; the caller turns it into a `CodecError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from msgspec import UNSET, UnsetType
from msgspec.msgpack import Decoder, Encoder, Ext

from milecastle.codec import codes
from milecastle.codec.bounds import MAX_INT_BYTES
from milecastle.codec.refusal import Refusal

_encode: Final = Encoder().encode
_decode: Final = Decoder(list[Any]).decode
_complex: Final = struct.Struct(">dd")
_MICROSECOND: Final = timedelta(microseconds=1)


def _write_int(value: int) -> object:
    if -(1 << 63) <= value < 1 << 64:
        return value
    size = value.bit_length() // 8 + 1
    if size > MAX_INT_BYTES:
        raise Refusal(f"an int of {size} bytes is over the limit of {MAX_INT_BYTES}", int)
    return Ext(codes.INT, value.to_bytes(size, "big", signed=True))


def _read_int(body: memoryview) -> int:
    if len(body) > MAX_INT_BYTES:
        raise ValueError("int over the limit")
    return int.from_bytes(body, "big", signed=True)


def _write_str(value: str) -> object:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(codes.STR, value.encode("utf-8", "surrogatepass"))
    return value


def _zone(zone: tzinfo | None, kind: type) -> list[object] | None:
    if zone is None:
        return None
    if type(zone) is not timezone:
        raise Refusal(
            f"its time zone is a {type(zone).__name__}, but only UTC and fixed offsets can be "
            "stored: convert it with .astimezone(datetime.timezone.utc)",
            kind,
        )
    offset = zone.utcoffset(None) // _MICROSECOND
    name = zone.tzname(None)
    return [offset] if name == timezone(zone.utcoffset(None)).tzname(None) else [offset, name]


def _read_zone(parts: list[Any] | None) -> timezone | None:
    if parts is None:
        return None
    offset, *name = parts
    return timezone(offset * _MICROSECOND, *name)


def _extension(code: int, parts: list[object], kind: type) -> Ext:
    try:
        return Ext(code, _encode(parts))
    except UnicodeEncodeError:
        raise Refusal("the name of its time zone is not valid text", kind) from None


def _write_datetime(value: datetime) -> Ext:
    day = [value.year, value.month, value.day]
    clock = [value.hour, value.minute, value.second, value.microsecond]
    zone = _zone(value.tzinfo, datetime)
    return _extension(codes.DATETIME, [*day, *clock, value.fold, zone], datetime)


def _read_datetime(body: memoryview) -> datetime:
    *parts, fold, zone = _decode(body)
    year, month, day, hour, minute, second, microsecond = parts
    return datetime(
        year, month, day, hour, minute, second, microsecond, _read_zone(zone), fold=fold
    )


def _write_time(value: time) -> Ext:
    clock = [value.hour, value.minute, value.second, value.microsecond]
    return _extension(codes.TIME, [*clock, value.fold, _zone(value.tzinfo, time)], time)


def _read_time(body: memoryview) -> time:
    hour, minute, second, microsecond, fold, zone = _decode(body)
    return time(hour, minute, second, microsecond, _read_zone(zone), fold=fold)


def _read_timedelta(body: memoryview) -> timedelta:
    days, seconds, microseconds = _decode(body)
    return timedelta(days, seconds, microseconds)


def _unchanged(value: object) -> object:
    return value


WRITERS: Final[dict[type, Callable[[Any], object]]] = {
    type(None): _unchanged,
    bool: _unchanged,
    float: _unchanged,
    bytes: _unchanged,
    int: _write_int,
    str: _write_str,
    bytearray: lambda it: Ext(codes.BYTEARRAY, bytes(it)),
    complex: lambda it: Ext(codes.COMPLEX, _complex.pack(it.real, it.imag)),
    datetime: _write_datetime,
    date: lambda it: Ext(codes.DATE, _encode([it.year, it.month, it.day])),
    time: _write_time,
    timedelta: lambda it: Ext(codes.TIMEDELTA, _encode([it.days, it.seconds, it.microseconds])),
    UUID: lambda it: Ext(codes.UUID, it.bytes),
    Decimal: lambda it: Ext(codes.DECIMAL, str(it).encode()),
    UnsetType: lambda _: Ext(codes.UNSET, b""),
}

READERS: Final[dict[int, Callable[[memoryview], object]]] = {
    codes.INT: _read_int,
    codes.STR: lambda body: str(body, "utf-8", "surrogatepass"),
    codes.BYTEARRAY: bytearray,
    codes.COMPLEX: lambda body: complex(*_complex.unpack(body)),
    codes.DATETIME: _read_datetime,
    codes.DATE: lambda body: date(*_decode(body)),
    codes.TIME: _read_time,
    codes.TIMEDELTA: _read_timedelta,
    codes.UUID: lambda body: UUID(bytes=bytes(body)),
    codes.DECIMAL: lambda body: Decimal(str(body, "ascii")),
    codes.UNSET: lambda _: UNSET,
}
