"""Payloads with references in place of their large values, and back.

A payload is taken apart into pieces: bytes that stay, and references to objects. The pieces in
order are the original, byte for byte, so nothing is decoded and nothing can change.

Rules:

- An unencrypted payload is cut at its large values. If it was compressed, it is
  decompressed first and compressed again when it is restored.
- An encrypted payload, or one in an unknown form, becomes one object.
- A payload looking like one naming objects is always an object itself, so a store never
  takes it for its own. So is one falsely looking like one with files.
- A payload naming files stays around the pieces, so the sweep can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import msgspec.msgpack

from milecastle.codec.envelope import (
    COMPRESSED,
    ENCRYPTED,
    compress,
    decompress,
    frame,
    frame_objects,
    names_archive,
    names_files,
    names_objects,
    plain_size,
    unframe,
    unframe_archive,
    unframe_files,
    unframe_objects,
)
from milecastle.errors import CodecError, MilecastleError
from milecastle.stores.offloading.large_values import Range, large_parts
from milecastle.support.prepared import prepared

WHOLE: Final = 0
"""The pieces are the payload."""
PLAIN: Final = 1
"""The pieces are the body of an envelope."""
PACKED: Final = 2
"""The pieces are the body of an envelope that compresses it."""
SEALED: Final = 3
"""The pieces are a payload that is encrypted with the key of its thread."""


class ObjectReference(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size: int


class CutPayload(NamedTuple):
    form: int
    data: bytes
    large: list[Range]


@prepared
class _Names(msgspec.Struct, frozen=True, array_like=True):
    form: int
    pieces: tuple[bytes | ObjectReference, ...]


_decode: Final = msgspec.msgpack.Decoder(_Names).decode


def without_files(payload: bytes) -> tuple[list[str], bytes]:
    """The file digests a payload names, and the payload inside.

    None, and the payload itself, if it does not name any.
    """
    if names_files(payload):
        with suppress(CodecError):  # not one of ours
            return unframe_files(payload)
    return [], payload


def without_archive(payload: bytes) -> bytes:
    """The payload inside of one that names segments."""
    return unframe_archive(payload)[1] if names_archive(payload) else payload


def take_apart(payload: bytes, threshold: int) -> CutPayload | None:
    """A payload's large parts; ``None`` if it is stored unchanged."""
    if names_objects(payload) or names_files(payload) or names_archive(payload):
        return CutPayload(WHOLE, payload, [(0, len(payload))])
    if plain_size(payload) <= threshold:
        return None
    form, data = opened(payload)
    if form in (WHOLE, SEALED):
        return CutPayload(form, data, [(0, len(data))])
    return CutPayload(
        form, data, list(_with_gaps(large_parts(data, threshold), len(data), threshold))
    )


def put_together(parts: CutPayload, store: Callable[[bytes], ObjectReference]) -> bytes:
    """The payload with references; ``store`` is called for each large value."""
    pieces: list[bytes | ObjectReference] = []
    at = 0
    for start, end in parts.large:
        if start > at:
            pieces.append(parts.data[at:start])
        pieces.append(store(parts.data[start:end]))
        at = end
    if at < len(parts.data):
        pieces.append(parts.data[at:])
    return frame_objects(msgspec.msgpack.encode(_Names(parts.form, tuple(pieces))))


def restore(payload: bytes, fetch: Callable[[ObjectReference], bytes]) -> bytes:
    """The payload taken apart.

    Raises: CodecError: the references are damaged. Whatever ``fetch`` raises.
    """
    names = _names(payload)
    data = b"".join(piece if isinstance(piece, bytes) else fetch(piece) for piece in names.pieces)
    if names.form == PLAIN:
        return frame(0, data)
    return frame(*compress(data)) if names.form == PACKED else data


def references(payload: bytes) -> list[ObjectReference]:
    inside = without_files(without_archive(payload))[1]
    return _references(_names(inside)) if names_objects(inside) else []


def named_files(payload: bytes) -> list[str]:
    payload = without_archive(payload)
    return unframe_files(payload)[0] if names_files(payload) else []


def sealed_references(payload: bytes) -> list[ObjectReference]:
    """Objects in an encrypted payload: no other thread can use them."""
    inside = without_files(without_archive(payload))[1]
    if not names_objects(inside):
        return []
    names = _names(inside)
    return _references(names) if names.form == SEALED else []


def _references(names: _Names) -> list[ObjectReference]:
    return [piece for piece in names.pieces if isinstance(piece, ObjectReference)]


def _names(payload: bytes) -> _Names:
    try:
        return _decode(unframe_objects(payload))
    except msgspec.DecodeError:
        raise CodecError("the stored bytes do not name objects") from None


def opened(payload: bytes) -> tuple[int, bytes]:
    try:
        flags, body = unframe(payload)
        if flags & ENCRYPTED:
            return SEALED, payload
        return (PACKED, decompress(body)) if flags & COMPRESSED else (PLAIN, body)
    except MilecastleError:
        return WHOLE, payload


def _with_gaps(found: Iterable[Range], size: int, threshold: int) -> Iterator[Range]:
    at = 0
    for start, end in [*found, (size, size)]:
        if start - at > threshold:
            yield at, start
        if end > start:
            yield start, end
        at = end
