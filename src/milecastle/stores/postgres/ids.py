"""Ids in few bytes.

A UUID takes 16 bytes, whatever else is used as an id takes its text and one byte more. No two ids
have the same bytes, and none has no bytes: that is left to mean "as before".
"""

from __future__ import annotations

import re
from functools import lru_cache

from milecastle.errors import Corrupted

__all__ = ["NO_ID", "id_from", "id_to", "is_uuid", "origin_from", "origin_to", "time_of"]

NO_ID = b"\2"
"""Stands where an id could be and is not."""

_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_HEX = re.compile("(?:[0-9a-f]{2})+").fullmatch
_SIZE = 16
_TEXT, _LONGER_TEXT = b"\0", b"\1\0"
_SHORT, _LONG = 0, 1


@lru_cache(maxsize=8192)
def id_to(text: str) -> bytes:
    """The bytes of an id."""
    if _UUID(text):
        return bytes.fromhex(text.replace("-", ""))
    body = text.encode("utf-8", "surrogatepass")
    return (_TEXT if len(body) != _SIZE - 1 else _LONGER_TEXT) + body


def is_uuid(text: str) -> bool:
    """Whether an id is one that nobody else makes."""
    return len(id_to(text)) == _SIZE


def id_from(stored: bytes) -> str:
    """The id of these bytes."""
    if len(stored) == _SIZE:
        digits = stored.hex()
        parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
        return "-".join(parts)
    for mark in (_TEXT, _LONGER_TEXT):
        if stored.startswith(mark):
            return _text(stored[len(mark) :])
    raise _damaged("an id")


def time_of(identifier: bytes) -> int | None:
    """The time that a UUIDv7 tells, in microseconds; ``None`` if it is none."""
    if len(identifier) != _SIZE or identifier[6] >> 4 != 7:
        return None
    return int.from_bytes(identifier[:6]) * 1000


@lru_cache(maxsize=4096)
def origin_to(run_id: str, fingerprint: str) -> bytes:
    """Which run wrote an entry, under which fingerprint."""
    run = id_to(run_id)
    if len(run) == _SIZE and _HEX(fingerprint):
        return bytes((_SHORT,)) + run + bytes.fromhex(fingerprint)
    body = fingerprint.encode("utf-8", "surrogatepass")
    return bytes((_LONG,)) + len(run).to_bytes(4) + run + body


@lru_cache(maxsize=4096)
def origin_from(stored: bytes) -> tuple[str, str]:
    """The run and the fingerprint."""
    if stored[:1] == bytes((_SHORT,)) and len(stored) > 1 + _SIZE:
        return id_from(stored[1 : 1 + _SIZE]), stored[1 + _SIZE :].hex()
    if stored[:1] != bytes((_LONG,)):
        raise _damaged("an origin")
    end = 5 + int.from_bytes(stored[1:5])
    return id_from(stored[5:end]), _text(stored[end:])


def _text(stored: bytes) -> str:
    try:
        return stored.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise _damaged("an id") from None


def _damaged(what: str) -> Corrupted:
    return Corrupted(f"{what} that was never written", place="a column of ids")
