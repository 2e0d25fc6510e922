"""A body's large parts: byte ranges, found without decoding any value.

A *large value* is one above the threshold none of whose parts is above it: a text, bytes, an array,
or a list of many small items. Only containers above the threshold are looked into, each by one
call that splits it into its items, so the cost depends on the large parts and not on the small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import DecodeError, Raw
from msgspec.msgpack import Decoder

from milecastle.codec import codes

Range = tuple[int, int]

_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}

_items: Final = Decoder(list[Raw]).decode


def large_parts(body: bytes, threshold: int) -> list[Range]:
    found: list[Range] = []
    waiting = [(0, len(body))]
    while waiting:
        start, end = waiting.pop()
        inside = [part for part in _parts(body, start, end) if part[1] - part[0] > threshold]
        waiting += inside
        if not inside and end - start > threshold:
            found.append((start, end))
    return sorted(found)


def _parts(body: bytes, start: int, end: int) -> Iterator[Range]:
    count, first = _container(body, start)
    if not count:
        if first:
            yield first, end
        return
    try:
        items = _items(b"\xdd" + count.to_bytes(4) + body[first:end])
    except DecodeError:
        return
    for item in items:
        size = len(memoryview(item))
        yield first, first + size
        first += size


def _container(body: bytes, start: int) -> tuple[int, int]:
    head = body[start] if start < len(body) else 0
    if 0x90 <= head <= 0x9F:
        return head & 0x0F, start + 1
    if 0x80 <= head <= 0x8F:
        return 2 * (head & 0x0F), start + 1
    if head in _ARRAYS:
        width = _ARRAYS[head]
        return int.from_bytes(body[start + 1 : start + 1 + width]), start + 1 + width
    if head in _MAPS:
        width = _MAPS[head]
        return 2 * int.from_bytes(body[start + 1 : start + 1 + width]), start + 1 + width
    if head in _EXTENSIONS:
        code = start + 1 + _EXTENSIONS[head]
        if body[code : code + 1] and body[code] in codes.NESTING:
            return 0, code + 1
    return 0, 0
