"""Forms made from JSON schemas: their fields, and parsing the typed values.

A form sends, for each field, its name as ``field`` and its text as ``value``, in the same order
(``SchemaForm``). A schema is stored data: one that is broken, refers to itself, or describes more
than simple fields is asked for as JSON, never refused.

| schema | control |
| --- | --- |
| boolean | two buttons; in a form with several fields a choice |
| enum, const | a choice |
| string, number, integer | a line; text of any length has several |
| object with properties | one field for each; those of other types are JSON |
| anything else | JSON |

Any schema may be nullable: then an empty field is ``null``. An empty field that is not required is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec
import msgspec.json

from milecastle.codec.answers import check_answer
from milecastle.errors import InvalidAnswer
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.forms import named
from milecastle.support.printable import path_segment, printable
from milecastle.views.values import as_json

FormControl = Literal["buttons", "choice", "line", "lines", "number", "json"]
_Schema = Mapping[str, Any]

_MOST: Final = 100
"""How many fields a form may have, and how many choices a field; what has more is JSON."""
_REFERENCES: Final = 20
_SHORT: Final = 200
_KINDS: Final = {
    "string": "text",
    "integer": "whole number",
    "array": "a list",
    "object": "an object",
    "boolean": "yes or no",
}
_SIMPLE: Final = ("boolean", "string", "number", "integer")


class SchemaForm(HttpDocument, frozen=True):
    """Data sent by such a form. Forms with more fields extend it."""

    field: tuple[str, ...] = ()
    value: tuple[str, ...] = ()


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """A form's control. ``name`` is empty if it is the whole value; ``text`` is its content.

    ``choices`` are JSON texts, and ``labels`` their display. ``hint`` describes valid input.
    """

    name: str
    label: str
    control: FormControl
    choices: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    required: bool = True
    nullable: bool = False
    hint: str = ""
    text: str = ""


def form_fields(schema: Any, typed: Mapping[str, str] | None = None) -> tuple[FormField, ...]:
    """Fields for a value with this schema; ``None``: anything. ``typed`` is shown in them."""
    given = typed or {}
    fields = _members(_resolved(schema, schema), schema)
    if not fields:
        whole = _field("", schema, schema, True)
        fields = (_with(whole, control="buttons") if _asks_yes_or_no(whole) else whole,)
    return tuple(_with(one, text=given.get(one.name, one.text)) for one in fields)


def typed_in(form: SchemaForm) -> dict[str, str]:
    return dict(zip(map(named, form.field), form.value, strict=False))


def parsed(schema: Any, typed: Mapping[str, str], shown: Any) -> Any:
    """The value typed into the form for the schema ``shown``, which is valid.

    The two schemas differ if a hook hides some of it.

    Raises:
        InvalidAnswer: it is not; the message has its path, never the typed text.
    """
    fields = form_fields(shown)
    if fields[0].name:
        members = ((one.name, _value(one, typed.get(one.name, ""))) for one in fields)
        value: Any = {name: member for name, member in members if member is not msgspec.UNSET}
    else:
        value = _value(fields[0], typed.get("", ""))
    check_answer(value, cast("_Schema", schema) if isinstance(schema, Mapping) else None)
    return value


def _members(schema: _Schema, root: Any) -> tuple[FormField, ...]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or "enum" in schema:
        return ()
    known = cast("Mapping[str, Any]", properties)
    wanted = schema.get("required")
    required = cast("list[Any]", wanted) if isinstance(wanted, list | tuple) else []
    if not all(known) or len(known) > _MOST:  # the empty name is that of the whole value
        return ()
    return tuple(_field(name, known[name], root, name in required) for name in known)


def _field(name: str, schema: Any, root: Any, required: bool) -> FormField:
    given = _resolved(schema, root)
    found, nullable = _without_null(given, root)
    about = [
        text for one in (found, given) for text in (one.get("title"),) if isinstance(text, str)
    ]
    field = FormField(
        name=name,
        label=name or (about[0] if about else "Answer"),
        control="json",
        required=required,
        nullable=nullable,
        hint=_hint(found),
        text=_default(given),
    )
    choices = _choices(found)
    if choices:
        return _with(field, control="choice", choices=choices, labels=_labels(choices))
    kind = found.get("type")
    if kind not in _SIMPLE or any(part in found for part in ("anyOf", "oneOf", "allOf")):
        return field if schema else _with(field, hint="any JSON")
    if kind == "string":
        longest = found.get("maxLength")
        short = "format" in found or (isinstance(longest, int) and longest <= _SHORT)
        text = given.get("default")
        shown = text if isinstance(text, str) and text.isprintable() else ""
        return _with(field, control="line" if short else "lines", text=shown)
    return _with(field, control="number")


def _choices(schema: _Schema) -> tuple[str, ...]:
    if schema.get("type") == "boolean" and "enum" not in schema:
        return ("true", "false")
    given = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(given, list | tuple):
        return ()
    found = cast("list[Any]", given)
    return tuple(map(as_json, found)) if len(found) <= _MOST else ()


def _labels(choices: tuple[str, ...]) -> tuple[str, ...]:
    """Choices for people: texts without quotes, unless a number or an empty text is among them."""
    if choices == ("true", "false"):
        return ("yes", "no")
    values = [msgspec.json.decode(choice) for choice in choices]
    if all(isinstance(value, str) and value.strip() for value in values):
        return tuple(map(printable, values))
    return choices


def _asks_yes_or_no(field: FormField) -> bool:
    return field.choices == ("true", "false") and not field.nullable


def _hint(schema: _Schema) -> str:
    names = ("type", "format", "minimum", "maximum", "minLength", "maxLength", "pattern")
    said = [
        f"{name} {schema[name]}" for name in names[2:] if isinstance(schema.get(name), int | str)
    ]
    kind = [str(schema[name]) for name in names[:2] if isinstance(schema.get(name), str)]
    kind = [_KINDS.get(one, one) for one in kind]
    return ", ".join([" ".join(kind), *said] if kind else said)[:_SHORT]


def _default(schema: _Schema) -> str:
    default = schema.get("default")
    return "" if default is None else as_json(default)


def _resolved(schema: Any, root: Any) -> _Schema:
    """A schema without references; empty, which accepts anything, if one cannot be followed."""
    for _ in range(_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        known = cast("_Schema", schema)
        place = known.get("$ref")
        if place is None:
            return known
        schema = _at(str(place), root)
    return {}


def _at(place: str, root: Any) -> Any:
    found = root
    for part in place.removeprefix("#/").split("/"):
        found = cast("_Schema", found).get(part) if isinstance(found, Mapping) else None
    return found


def _without_null(schema: _Schema, root: Any) -> tuple[_Schema, bool]:
    kind, forms = schema.get("type"), schema.get("anyOf")
    if isinstance(kind, list | tuple) and "null" in kind:
        others = [one for one in cast("list[Any]", kind) if one != "null"]
        return ({**schema, "type": others[0]} if len(others) == 1 else {}), True
    if isinstance(forms, list | tuple):
        found = [_resolved(one, root) for one in cast("list[Any]", forms)]
        rest = [one for one in found if one.get("type") != "null"]
        nullable = len(rest) < len(found)
        return (rest[0] if nullable and len(rest) == 1 else schema), nullable
    return schema, False


def _value(field: FormField, text: str) -> Any:
    text = text.replace("\r\n", "\n")  # browsers send line ends so
    path = f"${path_segment(field.name)}" if field.name else "$"
    if not text.strip() and field.control not in ("line", "lines"):
        return _empty(field, path)
    if not text and (field.nullable or not field.required):
        return _empty(field, path)
    if field.control in ("line", "lines"):
        return text
    if field.choices and text not in field.choices:
        raise InvalidAnswer(f"the answer is not valid: {path} is not one of its choices")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        what = "a number" if field.control == "number" else "JSON"
        why = f": {error}" if isinstance(error, msgspec.DecodeError) else ""
        raise InvalidAnswer(f"the answer is not valid: {path} is not {what}{why}") from None


def _empty(field: FormField, path: str) -> Any:
    if field.nullable:
        return None
    if field.required:
        raise InvalidAnswer(f"the answer is not valid: {path} is empty")
    return msgspec.UNSET


def _with(field: FormField, **changed: Any) -> FormField:
    return msgspec.structs.replace(field, **changed)
