"""Answers: what a question takes, as a JSON schema, and whether a value fits it.

A question is asked in one process and answered in another, perhaps by somebody who does not have
the code. So the type is stored as a schema, and an answer is plain data until it is delivered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

import msgspec

from milecastle.codec.plain import kind_of
from milecastle.errors import InvalidAnswer, InvalidRequest

__all__ = ["as_plain", "check_answer", "deliver", "schema_of"]

Schema = Mapping[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list, tuple),
    "object": (dict,),
}


def schema_of(wanted: Any) -> dict[str, Any] | None:
    """The JSON schema of a type; ``None`` for anything."""
    if wanted is None or wanted is Any:
        return None
    try:
        if hasattr(wanted, "model_json_schema"):
            return cast("dict[str, Any]", wanted.model_json_schema())
        schema = msgspec.json.schema(wanted)
        form = next((name for name, kind in _forms().items() if kind is wanted), None)
        return schema | {"format": form} if form else schema  # times without a zone have none
    except TypeError as error:
        raise InvalidRequest(
            f"answer= is a type that answers can be checked against: {error}"
        ) from None


def as_plain(answer: Any) -> Any:
    """An answer as plain data: what JSON can say."""
    try:
        if hasattr(answer, "model_dump"):
            return answer.model_dump(mode="json")
        return msgspec.to_builtins(answer)
    except TypeError as error:
        raise InvalidAnswer(f"an answer is plain data: {error}") from None


def deliver(answer: Any, wanted: Any) -> Any:
    """A stored answer in the type that the node asked for."""
    if wanted is None or wanted is Any:
        return answer
    try:
        if hasattr(wanted, "model_validate"):
            return wanted.model_validate(answer)
        return msgspec.convert(answer, wanted)
    except ValueError as error:
        kind = getattr(wanted, "__name__", str(wanted))
        raise InvalidAnswer(f"the answer is no {kind}: {_reason(error)}") from None


def _reason(error: ValueError) -> str:
    """What a type says of a value that it refuses, without the value."""
    if isinstance(error, msgspec.ValidationError):
        return str(error).partition("\n")[0]
    tell: Any = getattr(error, "errors", None)
    if tell is None:
        return "refused"
    first = tell(include_url=False, include_context=False, include_input=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"${place}: {first['msg']}"


def check_answer(answer: Any, schema: Schema | None) -> None:
    """Refuse an answer that does not fit; the message names the path, never the value."""
    if schema is None:
        return
    problem = next(_problems(answer, schema, "$", schema), None)
    if problem is not None:
        raise InvalidAnswer(f"the answer does not fit: {problem}")


def _problems(value: Any, schema: Schema, path: str, root: Schema) -> Iterator[str]:
    if "$ref" in schema:
        schema = _resolve(schema["$ref"], root)
    yield from _type_problems(value, schema, path)
    for name in ("anyOf", "oneOf"):
        if name in schema and not any(_fits(value, choice, path, root) for choice in schema[name]):
            yield f"{path} fits none of the {len(schema[name])} forms that are taken"
    for part in schema.get("allOf", ()):
        yield from _problems(value, part, path, root)
    yield from _bound_problems(value, schema, path)
    kind = kind_of(value)
    if kind is dict:
        yield from _object_problems(value, schema, path, root)
    if kind is list or kind is tuple:
        yield from _array_problems(value, schema, path, root)


def _fits(value: Any, schema: Schema, path: str, root: Schema) -> bool:
    return next(_problems(value, schema, path, root), None) is None


def _resolve(reference: str, root: Schema) -> Schema:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return cast("Schema", found)


def _type_problems(value: Any, schema: Schema, path: str) -> Iterator[str]:
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else (wanted or [])
    if names and not any(_is(value, name) for name in names):
        yield f"{path} should be {' or '.join(names)}, not {_name(value)}"
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        yield f"{path} should be one of {len(schema['enum'])} choices: {schema['enum']}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{path} should be {schema['const']!r}"
    form = schema.get("format")
    if form in _forms() and isinstance(value, str):
        try:
            msgspec.convert(value, _forms()[form])
        except msgspec.ValidationError:
            yield f"{path} should be of the form {form}"


@cache
def _forms() -> dict[str, Any]:
    """The formats of strings that can be told, each with its type."""
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal
    from uuid import UUID

    return {
        "date-time": datetime,
        "date": date,
        "time": time,
        "duration": timedelta,
        "uuid": UUID,
        "decimal": Decimal,
    }


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, ()))


def _same(value: Any, choice: Any) -> bool:
    return isinstance(value, bool) == isinstance(choice, bool) and value == choice


def _name(value: Any) -> str:
    return next((name for name in _TYPES if _is(value, name)), type(value).__name__)


_BOUNDS: tuple[tuple[str, tuple[type, ...], Callable[[Any, Any], bool], str], ...] = (
    ("minimum", (int, float), lambda value, bound: value >= bound, "at least"),
    ("maximum", (int, float), lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", (int, float), lambda value, bound: value > bound, "more than"),
    ("exclusiveMaximum", (int, float), lambda value, bound: value < bound, "less than"),
    ("minLength", (str,), lambda value, bound: len(value) >= bound, "as long as at least"),
    ("maxLength", (str,), lambda value, bound: len(value) <= bound, "no longer than"),
    ("minItems", (list, tuple), lambda value, bound: len(value) >= bound, "as long as at least"),
    ("maxItems", (list, tuple), lambda value, bound: len(value) <= bound, "no longer than"),
    ("pattern", (str,), lambda value, bound: re.search(bound, value) is not None, "of the form"),
)


def _bound_problems(value: Any, schema: Schema, path: str) -> Iterator[str]:
    for name, kinds, holds, words in _BOUNDS:
        applies = name in schema and isinstance(value, kinds) and not isinstance(value, bool)
        if applies and not holds(value, schema[name]):
            yield f"{path} should be {words} {schema[name]}"


def _object_problems(
    value: dict[str, Any], schema: Schema, path: str, root: Schema
) -> Iterator[str]:
    known = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name} is missing"
    for name, member in value.items():
        if name in known:
            yield from _problems(member, known[name], f"{path}.{name}", root)
        elif isinstance(rest, dict):
            yield from _problems(member, cast("Schema", rest), f"{path}.{name}", root)
        elif rest is False:
            yield f"{path}.{name} is not known"


def _array_problems(value: Sequence[Any], schema: Schema, path: str, root: Schema) -> Iterator[str]:
    first = schema.get("prefixItems", ())
    rest = schema.get("items", True)
    for number, member in enumerate(value):
        wanted = first[number] if number < len(first) else rest
        if wanted is False:
            yield f"{path} should be no longer than {len(first)}"
        elif isinstance(wanted, Mapping):
            yield from _problems(member, cast("Schema", wanted), f"{path}[{number}]", root)
