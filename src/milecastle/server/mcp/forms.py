"""Questions as MCP clients' forms, and back: flat objects of texts, numbers and choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

FormSchema = Mapping[str, Any]

_FLAT: Final = frozenset({"string", "integer", "number", "boolean"})
_KEPT: Final = (
    "type",
    "title",
    "description",
    "default",
    "enum",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
)
_ANY: Final[FormSchema] = {"type": "string", "description": "The answer, as JSON."}


class QuestionForm(msgspec.Struct, frozen=True):
    """A form, and how its content becomes an answer: the ``object``, its ``value``, or ``json``."""

    schema: dict[str, Any]
    kind: str

    def read(self, content: Mapping[str, Any]) -> Any:
        """The answer in a form's content.

        Raises:
            ValueError: it has none.
        """
        if self.kind == "object":
            return dict(content)
        if "answer" not in content:
            raise ValueError("$.answer is missing")
        given = content["answer"]
        if self.kind == "value":
            return given
        try:
            return msgspec.json.decode(given)
        except (msgspec.DecodeError, TypeError):
            raise ValueError("$.answer is not JSON") from None


def form_of(schema: FormSchema | None) -> QuestionForm:
    whole = schema or {}
    found = _resolved(whole, whole)
    if found.get("type") == "object":
        required = list(found.get("required", ()))
        parts = {
            name: flat
            for name, part in found.get("properties", {}).items()
            if (flat := _flat(part, whole)) is not None
        }
        if parts and parts.keys() >= {*required}:
            made: dict[str, Any] = {"type": "object", "properties": parts, "required": required}
            return QuestionForm(made, "object")
    flat = _flat(found, whole)
    made = {"type": "object", "properties": {"answer": flat or dict(_ANY)}, "required": ["answer"]}
    return QuestionForm(made, "json" if flat is None else "value")


def _flat(part: FormSchema, whole: FormSchema) -> dict[str, Any] | None:
    found = _resolved(part, whole)
    if "enum" in found and "type" not in found and all(isinstance(x, str) for x in found["enum"]):
        found = {**found, "type": "string"}
    if found.get("type") not in _FLAT:
        return None
    return {name: found[name] for name in _KEPT if name in found}


def _resolved(part: FormSchema, whole: FormSchema) -> FormSchema:
    reference = part.get("$ref", "")
    if not reference.startswith("#/$defs/"):
        return part
    found: FormSchema = whole.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return found
