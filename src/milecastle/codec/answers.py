"""Answers: the JSON schema of a question, and whether a value matches it.

A question is asked in one process and answered in another, perhaps without access to the code. So
the type is stored as a schema, and an answer is plain data until it is delivered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, cast, is_typeddict

import msgspec

from milecastle.codec.declared_order import in_declared_order
from milecastle.codec.plain import kind_of
from milecastle.errors import InvalidAnswer, InvalidRequest
from milecastle.model.file import File
from milecastle.support.prepared import convert
from milecastle.support.printable import path_segment

_MAX_WAYS: Final = 1_000_000
_MAX_PATTERN: Final = 1000

_PIECE: Final = re.compile(
    r"(?:\\[dDwWsS.\-\\/@+*?()\[\]{}^$|]"  # an escape
    r"|\[\^?(?:\\.|[^\]\\])+\]"  # a class
    r"|[^\\\[\](){}|*+?^$])"  # a character
    r"(?P<repeat>[*+?]|\{(?P<least>\d+)(?P<more>,(?P<most>\d*))?\})?\??",
    re.DOTALL,
)


def may_match(pattern: str, text: str) -> bool:
    """True if a text matches a pattern, or if checking would take too long.

    A stored schema is data: a regular expression in it must not keep the process busy. Only a
    sequence of characters and classes with repeats is matched, if its repeats cannot try too many
    ways. Any other pattern is left to the type the node declares.
    """
    if _ways(pattern, len(text)) > _MAX_WAYS:
        return True
    try:
        return re.search(pattern, text) is not None
    except (re.error, OverflowError):
        return True


def _ways(pattern: str, size: int) -> float:
    end = len(pattern) - pattern.endswith("$")
    place, ways = int(pattern.startswith("^")), 1
    if len(pattern) > _MAX_PATTERN:
        return float("inf")
    if not place:
        ways = size + 1
    while place < end:
        piece = _PIECE.match(pattern, place, end)
        if piece is None:
            return float("inf")
        ways *= _choices(piece, size)
        place = piece.end()
    return ways


def _choices(piece: re.Match[str], size: int) -> int:
    repeat = piece["repeat"]
    if repeat is None or (piece["least"] and not piece["more"]):
        return 1
    if repeat == "?":
        return 2
    if piece["most"]:
        return min(size, max(0, int(piece["most"]) - int(piece["least"]))) + 1
    return size + 1


Schema = Mapping[str, Any]

_MAX_CHECKS: Final = 200_000
"""The maximum number of schema parts compared with an answer: a stored schema may refer to
itself."""

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
    if wanted is None or wanted is Any:
        return None
    try:
        if hasattr(wanted, "model_json_schema"):
            return cast("dict[str, Any]", wanted.model_json_schema())
        schema: dict[str, Any] = in_declared_order(msgspec.json.schema(wanted), wanted)
        form = next((name for name, kind in _forms().items() if kind is wanted), None)
        return schema | {"format": form} if form else schema  # times without a zone have none
    except TypeError as error:
        raise InvalidRequest(
            f"answer= must be a type that answers can be validated against: {error}"
        ) from None


def as_plain(answer: Any) -> Any:
    try:
        if hasattr(answer, "model_dump"):
            return answer.model_dump(mode="json")
        return msgspec.to_builtins(answer, enc_hook=_shown)
    except TypeError as error:
        raise InvalidAnswer(f"an answer must be plain data: {error}") from None


def _shown(value: Any) -> Any:
    if isinstance(value, File):
        return value.shown()
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def deliver(answer: Any, wanted: Any) -> Any:
    if wanted is None or wanted is Any:
        return answer
    try:
        return _read_as(answer, wanted)
    except ValueError as error:
        raise InvalidAnswer(f"the answer is not a valid {_named(wanted, error)}") from None


def read_message(value: Any, wanted: Any, what: str) -> Any:
    try:
        return _read_as(as_plain(value), wanted)
    except InvalidAnswer:
        raise InvalidRequest(f"{what} is not plain data, as its type needs") from None
    except ValueError as error:
        raise InvalidRequest(f"{what} is not a valid {_named(wanted, error)}") from None


def read_config(given: Any, wanted: type) -> Any:
    if not is_typeddict(wanted) and isinstance(given, wanted):
        return given
    try:
        return _read_as(given, wanted)
    except ValueError as error:
        raise InvalidRequest(f"the config is not a valid {_named(wanted, error)}") from None


def _read_as(value: Any, wanted: Any) -> Any:
    if hasattr(wanted, "model_validate"):
        return wanted.model_validate(value)
    return convert(value, wanted)


def _named(wanted: Any, error: ValueError) -> str:
    return f"{getattr(wanted, '__name__', str(wanted))}: {_reason(error)}"


def _reason(error: ValueError) -> str:
    if isinstance(error, msgspec.ValidationError):
        return str(error).partition("\n")[0]
    tell: Any = getattr(error, "errors", None)
    if tell is None:
        return "refused"
    first = tell()[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"${place}: {first['msg']}"


def check_answer(answer: Any, schema: Schema | None) -> None:
    """Refuse an invalid answer; the message names the path, never the value."""
    if schema is None:
        return
    try:
        problem = next(_problems(answer, schema, "$", _Root(schema)), None)
    except RecursionError:
        raise InvalidAnswer("its schema refers to itself endlessly") from None
    if problem is not None:
        raise InvalidAnswer(f"the answer is not valid: {problem}")


class _Root:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._left = _MAX_CHECKS

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise InvalidAnswer(
                f"checking it against its schema takes more than {_MAX_CHECKS} comparisons"
            )


def _problems(value: Any, schema: Schema, path: str, root: _Root) -> Iterator[str]:
    root.count()
    if "$ref" in schema:
        schema = _resolve(schema["$ref"], root.schema)
    yield from _type_problems(value, schema, path)
    for name in ("anyOf", "oneOf"):
        choices = schema.get(name, ())
        if name in schema and not any(
            next(_problems(value, choice, path, root), None) is None for choice in choices
        ):
            yield f"{path} matches none of the {len(choices)} accepted forms"
    for part in schema.get("allOf", ()):
        yield from _problems(value, part, path, root)
    yield from _bound_problems(value, schema, path)
    kind = kind_of(value)
    if kind is dict:
        yield from _object_problems(value, schema, path, root)
    if kind is list or kind is tuple:
        yield from _array_problems(value, schema, path, root)


def _resolve(reference: str, root: Schema) -> Schema:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return cast("Schema", found)


def _type_problems(value: Any, schema: Schema, path: str) -> Iterator[str]:
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else (wanted or [])
    if names and not any(_is(value, name) for name in names):
        found = next((name for name in _TYPES if _is(value, name)), type(value).__name__)
        yield f"{path} should be {' or '.join(names)}, not {found}"
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        yield f"{path} should be one of {len(schema['enum'])} choices: {schema['enum']}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{path} should be {schema['const']!r}"
    form = schema.get("format")
    if form in _forms() and isinstance(value, str):
        try:
            msgspec.convert(value, _forms()[form])
        except msgspec.ValidationError:
            yield f"{path} should have the form {form}"


@cache
def _forms() -> dict[str, Any]:
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


_BOUNDS: tuple[tuple[str, tuple[type, ...], Callable[[Any, Any], bool], str], ...] = (
    ("minimum", (int, float), lambda value, bound: value >= bound, "at least"),
    ("maximum", (int, float), lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", (int, float), lambda value, bound: value > bound, "more than"),
    ("exclusiveMaximum", (int, float), lambda value, bound: value < bound, "less than"),
    ("minLength", (str,), lambda value, bound: len(value) >= bound, "as long as at least"),
    ("maxLength", (str,), lambda value, bound: len(value) <= bound, "no longer than"),
    ("minItems", (list, tuple), lambda value, bound: len(value) >= bound, "as long as at least"),
    ("maxItems", (list, tuple), lambda value, bound: len(value) <= bound, "no longer than"),
    ("pattern", (str,), lambda value, bound: may_match(bound, value), "of the form"),
)


def _bound_problems(value: Any, schema: Schema, path: str) -> Iterator[str]:
    for name, kinds, holds, words in _BOUNDS:
        applies = name in schema and isinstance(value, kinds) and not isinstance(value, bool)
        if applies and not holds(value, schema[name]):
            yield f"{path} should be {words} {schema[name]}"


def _object_problems(
    value: dict[str, Any], schema: Schema, path: str, root: _Root
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
            yield from _problems(member, cast("Schema", rest), f"{path}{path_segment(name)}", root)
        elif rest is False:
            yield f"{path}{path_segment(name)} is not allowed"


def _array_problems(value: Sequence[Any], schema: Schema, path: str, root: _Root) -> Iterator[str]:
    first = schema.get("prefixItems", ())
    rest = schema.get("items", True)
    for number, member in enumerate(value):
        wanted = first[number] if number < len(first) else rest
        if wanted is False:
            yield f"{path} should be no longer than {len(first)}"
        elif isinstance(wanted, Mapping):
            yield from _problems(member, cast("Schema", wanted), f"{path}[{number}]", root)
