"""Values of the state as JSON for display, and parsing of typed JSON.

What JSON cannot express is written as text: times in ISO 8601, sets as sorted lists, bytes in
base64, non-finite numbers by name, and integers with more digits than Python writes in hexadecimal.
It is never read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import click
import msgspec

from milecastle.graph.schema import Channel, StateSchema
from milecastle.model.file import File
from milecastle.model.prepared import convert
from milecastle.model.printable import is_unsafe

_SURELY_SHORT = 2000
"""Bits of a number whose decimal digits Python always writes, whatever its limit."""


def anything(value: Any) -> Any:
    """Forget what a type checker half knows of a value."""
    return value


def as_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON text. Control sequences and surrogates are escaped."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        json.dumps(char)[1:-1] if char != "\n" and is_unsafe(char) else char for char in text
    )


def plain(value: Any) -> Any:
    """A value as None, bool, int, float, str, list and dict."""
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
    """A number, or its hexadecimal digits where Python refuses to write the decimal ones."""
    try:
        return value if value.bit_length() < _SURELY_SHORT else int(str(value))
    except ValueError:
        return hex(value)


def _converted(value: Any) -> Any:
    """Structs, dataclasses, dates, UUIDs, bytes; or the name of the type."""
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


def parse_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object typed by a user.

    Raises:
        click.UsageError: it is something else; the value is not repeated.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError(f'{what} must be a JSON object, such as \'{{"topic": "walls"}}\'')
    return cast("dict[str, Any]", found)


def parse_loosely(text: str) -> Any:
    """JSON if valid, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def fitted(schema: StateSchema, given: Mapping[str, Any], typed: Mapping[str, str]) -> Any:
    """Values from JSON converted to the types that the channels declare, where that is obvious.

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
