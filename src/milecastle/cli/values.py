"""Values of the state as JSON that people and programs read, and JSON that people type.

What JSON has no word for is written as text: times in ISO 8601, numbers too large for others as
they are, sets as sorted lists, bytes in base64, what is not finite by name. It is for reading;
nothing is ever read back from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import click
import msgspec

from milecastle.graph.schema import Channel, StateSchema

__all__ = ["anything", "as_json", "fitted", "parse_loosely", "parse_object", "plain"]


def anything(value: Any) -> Any:
    """Forget what a type checker half knows of a value."""
    return value


def as_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON text. Lone surrogates, which no encoding has, are escaped."""
    made = plain(value)
    text = json.dumps(made, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(made, indent=indent)
    return text


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
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return _converted(value)


def _converted(value: Any) -> Any:
    """Structs, dataclasses, dates, UUIDs, bytes; or the name of the type."""
    import dataclasses

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name, None)) for f in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, OverflowError):
        return f"<{type(value).__module__}.{type(value).__qualname__}>"


def parse_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object that somebody typed.

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
    """JSON if it is that, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def fitted(schema: StateSchema, given: Mapping[str, Any], typed: Mapping[str, str]) -> Any:
    """What was read from JSON in the types that the channels declare, wherever that is plain.

    ``typed`` holds what was typed as text: ``--set version=5`` is text if that is what the
    channel takes. What does not fit is left as it is: the engine says so with its own words.
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
        return msgspec.convert(value, channel.annotation, strict=False)
    except (TypeError, ValueError, msgspec.ValidationError):
        return value
