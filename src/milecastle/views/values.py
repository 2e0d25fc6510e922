"""State values as JSON for display.

Values JSON cannot express are written as text: times in ISO 8601, sets as sorted lists, bytes in
base64, non-finite numbers by name, and integers with more digits than Python writes in hexadecimal.
It is never read back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from milecastle.graph.schema import Channel, StateSchema
from milecastle.model.file import File
from milecastle.support.prepared import convert
from milecastle.support.printable import Escapes, escaped

_SURELY_SHORT = 2000
"""Bits of a number whose decimal digits Python always writes, whatever its limit."""

_SMALL: Final = 1 << 64
_PIECE: Final = 64 * 1024
_TOGETHER: Final = 1000
_LONGEST_ESCAPE: Final = 6
"""Characters of a piece of JSON, items of a list that are written together, and the bytes that a
character may take."""

_FLAT: Final = frozenset({str, int, float, bool, type(None)})
_JSON: Final = Escapes(lambda char: json.dumps(char)[1:-1])


def anything(value: Any) -> Any:
    return value


def as_json(value: Any, *, indent: int | None = None) -> str:
    if indent is None:
        return "".join(json_pieces(value))
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    return "\n".join([escaped(line, _JSON) for line in text.split("\n")])


class PlainValue(msgspec.Struct, frozen=True):
    value: Any


def json_pieces(value: Any) -> Iterator[str]:
    """A value as JSON text, in bounded pieces, each made in a few milliseconds."""
    parts: list[str] = []
    size = 0
    for text in _tokens(value.value if isinstance(value, PlainValue) else plain(value)):
        parts.append(text)
        size += len(text)
        if size >= _PIECE:
            yield escaped("".join(parts), _JSON)
            parts, size = [], 0
    yield escaped("".join(parts), _JSON)


def _tokens(value: Any) -> Iterator[str]:
    if json_size(value, _PIECE) <= _PIECE:
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, str):
        yield '"'
        for at in range(0, len(value), _PIECE):
            yield json.dumps(value[at : at + _PIECE], ensure_ascii=False)[1:-1]
        yield '"'
    elif isinstance(value, dict):
        members: dict[str, Any] = anything(value)
        before = "{"
        for name, member in members.items():
            yield before
            yield from _tokens(name)
            yield ": "
            yield from _tokens(member)
            before = ", "
        yield "}"
    else:
        yield "["
        yield from _items(anything(value))
        yield "]"


def _items(items: list[Any]) -> Iterator[str]:
    for at in range(0, len(items), _TOGETHER):
        part = items[at : at + _TOGETHER]
        if json_size(part, _PIECE) <= _PIECE:
            yield (", " if at else "") + json.dumps(part, ensure_ascii=False)[1:-1]
            continue
        for index, item in enumerate(part, at):
            yield ", " if index else ""
            yield from _tokens(item)


def json_size(value: Any, most: int) -> int:
    """Estimate a value's size in bytes as JSON; counting stops above ``most``.

    Values that are not JSON may have any size, and count as too large.
    """
    size, left = 0, [value]
    while left and size <= most:
        one = left.pop()
        if isinstance(one, str):
            size += 2 + len(one) * (1 if one.isascii() else _LONGEST_ESCAPE)
        elif isinstance(one, dict):
            members: dict[str, Any] = anything(one)
            size += 6 * len(members) + sum(map(len, members))
            left.extend(members.values())
        elif isinstance(one, list | tuple):
            items: list[Any] = anything(one)
            size += 2 * len(items)
            left.extend(items)
        else:
            size += 4 if type(one) in _FLAT else most + 1
    return size


def plain(value: Any) -> Any:
    if type(value) is str or (type(value) is int and -_SMALL < value < _SMALL):
        return value  # as nearly all are
    if value is None or isinstance(value, bool | str):
        return value if value is None or isinstance(value, bool) else str(value)
    if isinstance(value, Mapping):
        return _object(anything(value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, set | frozenset):
        items = [plain(item) for item in cast("set[Any]", value)]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    return _scalar(value)


def _object(given: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        key if isinstance(key, str) else _key_text(key): plain(value)
        for key, value in given.items()
    }


def _key_text(key: Any) -> str:
    made = plain(key)
    return made if isinstance(made, str) else json.dumps(made)


def _scalar(value: Any) -> Any:
    import enum
    import math

    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, int):
        return _number(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return _converted(value)


def _number(value: int) -> int | str:
    try:
        return value if value.bit_length() < _SURELY_SHORT else int(str(value))
    except ValueError:
        return hex(value)


def _converted(value: Any) -> Any:
    import dataclasses

    if isinstance(value, File):
        return value.shown()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name, None)) for f in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, OverflowError):
        return f"<{type(value).__module__}.{type(value).__qualname__}>"


def fitted(schema: StateSchema, given: Mapping[str, Any], typed: Mapping[str, str]) -> Any:
    """Convert JSON values to the channels' declared types, where that is obvious.

    ``typed`` contains the text as typed: ``--set version=5`` is text if the channel takes text.
    Values that do not match are left as they are: the engine reports them.
    """
    channels = schema.channels
    return {
        name: _fit(channels[name], value, typed.get(name)) if name in channels else value
        for name, value in given.items()
    }


def _fit(channel: Channel, value: Any, typed: str | None) -> Any:
    if channel.classes is None or isinstance(value, channel.classes):
        return value
    if typed is not None and str in channel.classes:
        return typed
    try:
        return convert(value, channel.annotation, strict=False)
    except (TypeError, ValueError, msgspec.ValidationError):
        return value
