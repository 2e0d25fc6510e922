"""Joining packed lists without unpacking them, so that a long chain is decoded in one go."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from milecastle.errors import CodecError

__all__ = ["join_lists"]


def join_lists(bodies: Sequence[bytes]) -> bytes:
    """One packed list with the items of all these packed lists, in turn."""
    if len(bodies) == 1:
        return bodies[0]
    total = 0
    parts = [b""]
    for body in bodies:
        count, start = _head(body)
        total += count
        parts.append(body[start:])
    parts[0] = struct.pack(">BI", 0xDD, total)
    return b"".join(parts)


def _head(body: bytes) -> tuple[int, int]:
    """How many items a packed list has, and where the first begins."""
    first = body[0] if body else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F, 1
    if first == 0xDC and len(body) >= 3:
        return int.from_bytes(body[1:3]), 3
    if first == 0xDD and len(body) >= 5:
        return int.from_bytes(body[1:5]), 5
    raise CodecError("a payload does not hold a list of operations")
