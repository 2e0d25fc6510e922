"""Channel values as bytes, and the operations leading from one value to the next.

A value is packed in one of these forms:

- ``""``: plain data, as msgpack; every tool of Milecastle can read it.
- a number: a list with so many objects; the body is their encodings, one after the other.
- a name: whatever else the serializer wrote, under the name it gave.

A list that grew is stored as the appended part: the encoding of a msgpack array is its header and
then its items, so the old body is the beginning of the new one. No object is compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import msgspec
import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol

from milecastle.codec.deltas import join_lists, list_head
from milecastle.errors import CodecError
from milecastle.integrations.langgraph.serde import is_msgpack
from milecastle.model.reducers import APPEND, SET

PackedForm = str | int

PLAIN: Final = ""

_MESSAGES: Final = "langchain_core.messages."
_MOST_BYTES: Final = 32 * 2**20
"""How many bytes of messages and their encodings are remembered."""

_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
)

_encode = msgspec.msgpack.Encoder().encode
_decode_bodies = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_body = msgspec.msgpack.Decoder(bytes).decode
_decode_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode

Operation = tuple[int, str, bytes]
"""Code, channel, and the value as msgpack."""

ChannelParts = dict[str, tuple[bytes, ...]]
"""For each channel what was set and then appended, as msgpack."""


class Packed(NamedTuple):
    form: PackedForm
    body: bytes


class _Encodings:
    """Encodings for LangChain's messages, found by content.

    A chat stores its messages with every checkpoint, and nearly all are as they were. A message
    that was changed in place has other contents. One containing objects is always encoded.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[type, bytes], bytes] = {}
        self._bytes = 0

    def joined(self, serde: SerializerProtocol, items: Sequence[Any]) -> bytes | None:
        found: list[bytes] = []
        for item in items:
            kind: type[object] = item.__class__
            if not kind.__module__.startswith(_MESSAGES):
                return None
            try:
                parts = item.__dict__, item.__pydantic_extra__
                contents = kind, ormsgpack.packb(parts, option=_OPTIONS)
            except (AttributeError, TypeError):
                return None
            found.append(self._known.get(contents) or self._encode(serde, item, contents))
        return b"".join(found)

    def _encode(self, serde: SerializerProtocol, item: Any, contents: tuple[type, bytes]) -> bytes:
        body = bytes(serde.dumps_typed(item)[1])
        self._bytes += len(contents[1]) + len(body)
        if self._bytes > _MOST_BYTES:
            self._known.clear()
            self._bytes = 0
        self._known[contents] = body
        return body


_encodings = _Encodings()


def pack(serde: SerializerProtocol, value: Any, before: Packed | None = None) -> Packed:
    """A value as bytes; ``before`` is the channel's old value, likely with the same form."""
    known = is_msgpack(serde)
    if known and (before is None or before.form == PLAIN) and type(value) is not bytearray:
        try:
            return Packed(PLAIN, ormsgpack.packb(value, option=_OPTIONS))
        except TypeError:
            pass  # not plain: it has objects, or keys that are not text
    is_list = type(cast("object", value)) is list
    items: Sequence[Any] = value if is_list else ()
    if known and items:
        found = _encodings.joined(serde, items)
        if found is not None:
            return Packed(len(items), found)
    form, body = serde.dumps_typed(value)
    if known and form == "msgpack" and is_list:
        count, start = list_head(body)
        return Packed(count, body[start:])
    return Packed(form, bytes(body))


def unpack(serde: SerializerProtocol, packed: Packed) -> Any:
    form, body = packed
    if isinstance(form, int):
        return serde.loads_typed(("msgpack", _list_of(form, body)))
    return serde.loads_typed((form or "msgpack", body))


def change(channel: str, old: Packed | None, new: Packed) -> Operation | None:
    if old == new:
        return None
    if old is not None and type(old.form) is type(new.form):
        if isinstance(new.form, int):
            if new.body.startswith(old.body):
                return APPEND.code, channel, _encode([new.body[len(old.body) :]])
        elif new.form == old.form == PLAIN and (tail := _appended(old.body, new.body)):
            return APPEND.code, channel, tail
    return set_to(channel, new)


def set_to(channel: str, packed: Packed) -> Operation:
    if packed.form == PLAIN:
        return SET, channel, packed.body
    value = [packed.body] if isinstance(packed.form, int) else packed.body
    return SET, channel, _encode(value)


def packed_of(parts: Sequence[bytes], form: PackedForm) -> Packed:
    if form == PLAIN:
        return Packed(form, join_lists(parts))
    if isinstance(form, int):
        return Packed(form, b"".join(body for part in parts for body in _decode_bodies(part)))
    return Packed(form, _decode_body(parts[-1]))


def write_body(operations: Iterable[Operation]) -> bytes:
    flat: list[Any] = []
    for code, channel, value in operations:
        flat += (code, channel, msgspec.Raw(value))
    return _encode(flat)


def read_body(body: bytes) -> Iterator[Operation]:
    parts = map(bytes, _decode_parts(body))
    for code, name, value in zip(parts, parts, parts, strict=True):
        yield code[0], _name(name), value


@lru_cache(maxsize=1024)
def _name(packed: bytes) -> str:
    return msgspec.msgpack.decode(packed, type=str)


def apply(parts: ChannelParts, body: bytes) -> None:
    for code, channel, value in read_body(body):
        if code == APPEND.code and channel in parts:
            parts[channel] += (value,)
        else:
            parts[channel] = (value,)


def fold(bodies: Iterable[bytes], dropped: str) -> bytes:
    found: dict[str, tuple[int, list[bytes]]] = {}
    for body in bodies:
        for code, channel, value in read_body(body):
            if code == APPEND.code and channel in found:
                found[channel][1].append(value)
            else:
                found[channel] = code, [value]
    found.pop(dropped, None)
    return write_body((code, name, join_lists(parts)) for name, (code, parts) in found.items())


def whole(parts: ChannelParts) -> bytes:
    return write_body((SET, name, join_lists(found)) for name, found in parts.items())


def _appended(old: bytes, new: bytes) -> bytes:
    try:
        (count, start), (total, place) = list_head(old), list_head(new)
    except CodecError:
        return b""
    if total <= count or not new.startswith(old[start:], place):
        return b""
    return _list_of(total - count, new[place + len(old) - start :])


def _list_of(count: int, items: bytes) -> bytes:
    return struct.pack(">BI", 0xDD, count) + items
