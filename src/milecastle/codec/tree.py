"""Bytes as msgpack sees them, extensions unopened: to say where they are wrong.

Used when reading failed or looks suspicious; the ordinary way never comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, cast

from msgspec.msgpack import Decoder, Ext

from milecastle.codec import codes
from milecastle.codec.refusal import key_segment

__all__ = ["find_bad", "has_timestamp"]

_open: Final = Decoder().decode
_CONTAINERS: Final = frozenset({codes.TUPLE, codes.SET, codes.FROZENSET, codes.PAIRS})
_OBJECTS: Final = frozenset({codes.RECORD, codes.MODEL, codes.ADAPTED})
_TIMESTAMPS: Final = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")


def has_timestamp(data: bytes) -> bool:
    """Whether msgpack's own timestamp, which is never written here, stands in ``data``."""
    if b"\xff" not in data or not any(start in data for start in _TIMESTAMPS):
        return False
    return find_bad(data, lambda _code, _body: None) is not None


def find_bad(data: bytes, read: Callable[[int, memoryview], object]) -> str | None:
    """The path of the first part that ``read`` does not open, or that is a timestamp."""
    try:
        return _search(_open(data), "$", read)
    except Exception:
        return "$"


def _search(part: Any, path: str, read: Callable[[int, memoryview], object]) -> str | None:
    if isinstance(part, datetime):
        return path
    for segment, inner in _inside(part):
        found = _search(inner, path + segment, read)
        if found is not None:
            return found
    if isinstance(part, Ext):
        try:
            read(part.code, memoryview(part.data))
        except Exception:
            return path
    return None


def _inside(part: Any) -> Iterator[tuple[str, object]]:
    if isinstance(part, list):
        items = cast("list[object]", part)
        yield from ((f"[{index}]", item) for index, item in enumerate(items))
    elif isinstance(part, dict):
        values = cast("dict[object, object]", part)
        for key, value in values.items():
            yield "{key}", key
            yield key_segment(key), value
    elif isinstance(part, Ext) and part.code in _CONTAINERS:
        yield from _inside(_open(part.data))
    elif isinstance(part, Ext) and part.code in _OBJECTS:
        _name, *sections = _open(part.data)
        yield from (("", section) for section in sections)
