"""Payloads as readable JSON, where that can be undone exactly.

A payload is the sealed msgpack of a list of operations. Most hold plain data and become
``"state": {"topic": "walls"}`` (a whole state) or ``"updates": [["append", "notes", ["x"]]]``.
Whether the very same bytes come back is made sure when writing: a few operations on text, whole
numbers, and lists and dicts of them are known to, the rest is tried. What fails (a type that JSON
lacks, NaN, keys that are no strings, bytes that are no payload), and what was compressed or
encrypted, stands as base64 under ``"payload"``.

The words and the seal here belong to this file format, version 1: they never change, whatever
becomes of the codec.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from itertools import chain
from types import GenericAlias
from typing import Any, Final, Literal
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, UnsetType

__all__ = ["LARGEST_READABLE", "Rendered", "render", "restore"]

LARGEST_READABLE: Final = 4096 + 6
"""What is larger is compressed as a rule, and would be costly to try."""

Rendered = tuple[Raw | UnsetType, Raw | UnsetType, str | UnsetType]
"""State, updates, payload: exactly one of them is there."""

_SEAL: Final = b"\x01\x00"
_SEALED: Final = crc32(_SEAL)
_WORDS: Final = ("set", "append", "merge", "add", "maximum", "minimum", "union")
_word_of: Final = dict(enumerate(_WORDS)).__getitem__
_code_of: Final = {word: code for code, word in enumerate(_WORDS)}.__getitem__

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(list[Any]).decode
_to_json: Final = msgspec.json.Encoder().encode
_as_state: Final = msgspec.json.Decoder(dict[str, Any]).decode
_as_updates: Final = msgspec.json.Decoder(list[tuple[str, str, Any]]).decode

# What JSON gives back as it was: no float, which may be NaN, and nothing that may be too deep.
_Leaf = bool | int | str | None
_Twig = _Leaf | list[_Leaf] | dict[str, _Leaf]
_Branch = _Leaf | list[_Twig] | dict[str, _Twig]
_Plain = _Leaf | list[_Branch] | dict[str, _Branch]
_OPERATION: Final = (Literal[0, 1, 2, 3, 4, 5, 6], str, _Plain)
_unpack_plain: Final = {
    bytes((0x90 + 3 * count,)): msgspec.msgpack.Decoder[tuple[Any, ...]](
        GenericAlias(tuple, _OPERATION * count)
    ).decode
    for count in range(1, 6)
}
"""By the first byte of a body, which says that it is a list of so many parts."""


def render(payload: bytes, *, whole: bool) -> Rendered:
    """The readable form of ``payload`` if it can be undone, else base64.

    ``whole`` says that it is a whole state and not an update of one.
    """
    if payload[:2] == _SEAL and len(payload) <= LARGEST_READABLE:
        if not whole:
            updates = _plain_updates(payload)
            if updates is not None:
                return UNSET, updates, UNSET
        try:
            rendered = _render(_unpack(payload[6:]), whole)
            if restore(*rendered) == payload:
                return rendered
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            pass  # no payload of ours, or one that JSON cannot hold
    return UNSET, UNSET, b2a_base64(payload, newline=False).decode()


def _plain_updates(payload: bytes) -> Raw | None:
    """The readable form of a few operations on plain values; ``None`` of anything else.

    That they come back is known without trying: JSON keeps these values, and packing them again
    gave the same bytes, so that nothing stood twice or in another form.
    """
    body = payload[6:]
    try:
        operations = _unpack_plain[body[:1]](body)
        if _seal(_pack(operations)) == payload:
            parts = iter(operations)
            updates = zip(map(_word_of, parts), parts, parts)  # noqa: B905 (they were counted)
            return Raw(_to_json(list(updates)))
    except (LookupError, ValueError, RecursionError):
        pass  # more operations, other values, or no payload of ours
    return None


def _render(operations: list[Any], whole: bool) -> Rendered:
    codes, names, values = operations[::3], operations[1::3], operations[2::3]
    if whole and not any(codes):
        state = dict(zip(names, values, strict=True))
        if len(state) == len(codes):
            return Raw(_to_json(state)), UNSET, UNSET
    updates = list(zip(map(_word_of, codes), names, values, strict=True))
    return UNSET, Raw(_to_json(updates)), UNSET


def restore(state: Raw | UnsetType, updates: Raw | UnsetType, payload: str | UnsetType) -> bytes:
    """The payload that was rendered; a ``ValueError`` if it is none."""
    operations: list[Any]
    if updates is not UNSET:
        operations = list(chain.from_iterable(_as_updates(updates)))
        operations[::3] = map(_code_of, operations[::3])
    elif state is not UNSET:
        operations = []
        for name, value in _as_state(state).items():
            operations += (0, name, value)
    elif payload is not UNSET:
        return a2b_base64(payload, strict_mode=True)
    else:
        raise ValueError("there is neither `state` nor `updates` nor `payload`")
    return _seal(_pack(operations))


def _seal(body: bytes) -> bytes:
    return _SEAL + crc32(body, _SEALED).to_bytes(4) + body
