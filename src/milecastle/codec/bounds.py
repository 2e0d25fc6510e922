"""Limits for stored values: depth, size and number.

The limits are checked when writing, so every store accepts and refuses the same values, and when
reading, so damaged or hostile bytes cannot exhaust the process: the memory they take is estimated
before they are decoded.

A one-byte container takes sixty in memory, so a compressed payload with some hundred bytes could
become gigabytes. Headers contain the number of items: containers and items are counted by walking
from header to header, without creating objects. Bodies too short to exceed a limit, which
is nearly all of them, are not walked.

Keys and set members with equal hashes are compared one by one: with many, a small body would take
minutes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import Final

from msgspec import DecodeError
from msgspec.msgpack import Decoder

from milecastle.codec import codes
from milecastle.errors import CodecError

MAX_DEPTH: Final = 200
"""Levels of nesting: ``[[1]]`` has two. Containers and objects count, scalars do not."""

MAX_BYTES: Final = 128 * 1024 * 1024
"""Size of an encoded body before compression."""

MAX_INT_BYTES: Final = 64 * 1024
"""Size of one int; half a million bits."""

MAX_CONTAINERS: Final = 1 << 22
"""Lists, dicts, sets, tuples and objects in one body: an empty one takes a byte there and sixty in
memory."""

MAX_ITEMS: Final = 1 << 25
"""Items of all containers in one body."""

MAX_EQUAL_HASHES: Final = 1024
"""Keys of one dict, or members of one set, with equal hashes: each is compared with all of them."""

_TEXTS: Final = {0xD9: 1, 0xC4: 1, 0xDA: 2, 0xC5: 2, 0xDB: 4, 0xC6: 4}
"""Texts and bytes: the number of bytes of their length field."""

_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_SHORT: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_NESTS: Final = frozenset(bytes([code]) for code in codes.NESTING)
_MAYBE_CONTAINERS: Final = bytes([*range(0x80, 0xA0), *range(0xC7, 0xCA), *range(0xD4, 0xE0)])
_LARGE_MAP: Final = re.compile(rb"\xde[\x04-\xff]|\xdf")
_LONG: Final = 32 * 1024
"""A body of fewer bytes cannot contain enough keys to matter."""

_WINDOW: Final = 256 * 1024
"""Bytes that one call looks at."""


@cache
def _patterns() -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Items whose first byte determines their length: up to a container's header, or all.

    Short texts are in groups of eight, because alternatives are tried one after the other.
    """
    texts = b"|".join(
        rb"(?=[\x%02x-\x%02x])(?:%b)"
        % (at, at + 7, b"|".join(b"\\x%02x.{%d}" % (n, n - 0xA0) for n in range(at, at + 8)))
        for at in range(0xA0, 0xC0, 8)
    )
    fixed = (
        rb"(?:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]++"  # small ints, nil, bools
        rb"|(?=[\xca-\xd3])(?:[\xcd\xd1]..|[\xca\xce\xd2].{4}|[\xcb\xcf\xd3].{8}|[\xcc\xd0].)"
        rb"|(?=[\xa0-\xbf])(?:" + texts + rb"))*+"
    )
    header = rb"([\x80-\x9f]|[\xdc\xde]..|[\xdd\xdf].{4})"
    return re.compile(fixed + header, re.DOTALL), re.compile(fixed, re.DOTALL)


def excess_of(data: bytes) -> str | None:
    size = len(data)
    if size <= MAX_CONTAINERS:
        return None
    if size <= MAX_ITEMS and _most_containers(data) <= MAX_CONTAINERS:
        return None
    containers, items = _count(data)
    if containers > MAX_CONTAINERS:
        return f"it has more than {MAX_CONTAINERS} containers"
    return f"it has more than {MAX_ITEMS} items" if items > MAX_ITEMS else None


def _most_containers(data: bytes) -> int:
    """Upper bound, in windows so no call holds the interpreter's lock for long."""
    windows = (data[at : at + _WINDOW] for at in range(0, len(data), _WINDOW))
    return sum(len(one) - len(one.translate(None, _MAYBE_CONTAINERS)) for one in windows)


def refuse_excess(data: bytes, path: str = "$") -> None:
    reason = excess_of(data)
    if reason is not None:
        raise CodecError(f"the value at {path} cannot be read: {reason}")


def _count(data: bytes) -> tuple[int, int]:
    """The number of containers and items in ``data``, up to the limits.

    An extension that is a container is walked as if it were there without the
    extension. If it is not msgpack the count is wrong from there on, and decoding ends there.
    """
    to_header, to_other = _patterns()
    containers = items = at = 0
    while containers <= MAX_CONTAINERS and items <= MAX_ITEMS:
        found = to_header.match(data, at)
        if found is not None:
            header, at = found[1], found.end()
            first = header[0]
            size = first & 0x0F if first < 0xA0 else int.from_bytes(header[1:])
            containers += 1
            items += size if 0x90 <= first <= 0xDD else 2 * size
            continue
        rest = to_other.match(data, at)
        at = at if rest is None else rest.end()
        if at >= len(data):
            break
        at = _past(data, at)
    return containers, items


def _past(data: bytes, at: int) -> int:
    first = data[at]
    width = _TEXTS.get(first)
    if width is not None:
        return at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width])
    width = _EXTENSIONS.get(first, 0)
    size = int.from_bytes(data[at + 1 : at + 1 + width]) if width else _SHORT.get(first)
    if size is None:
        return len(data)  # no writer writes this byte, and no decoder accepts it
    body = at + 2 + width
    return body if data[body - 1 : body] in _NESTS else body + size


EQUAL_HASHES: Final = f"more than {MAX_EQUAL_HASHES} of its members have equal hashes"


def has_equal_hashes(members: Collection[object]) -> bool:
    if len(members) <= MAX_EQUAL_HASHES:
        return False
    return len(members) - len(set(map(hash, members))) > MAX_EQUAL_HASHES


def refuse_odd_keys(data: bytes) -> None:
    """Refuse a large map with an extension as a key: no writer writes that.

    Keys that msgpack has itself cannot have many equal hashes.
    """
    windows = range(0, len(data), _WINDOW)
    if len(data) > _LONG and any(_LARGE_MAP.search(data, at, at + _WINDOW + 1) for at in windows):
        try:
            _without_extensions(data)
        except (DecodeError, TypeError) as error:  # the second below msgspec 0.22
            if "hashable" in str(error):  # anything else is found again, and reported, on decoding
                reason = "a map has an extension as a key, which milecastle never writes"
                raise CodecError(reason) from None


def _as_unhashable(code: int, body: memoryview) -> list[object]:
    if code.to_bytes(1, signed=True) in _NESTS:
        _without_extensions(body)
    return []


_without_extensions: Final = Decoder(ext_hook=_as_unhashable).decode
