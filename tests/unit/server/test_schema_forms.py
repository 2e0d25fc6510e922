"""Forms made of JSON schemas: which fields they have, and the values that are read back."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pytest

from milecastle.codec.answers import schema_of
from milecastle.errors import InvalidAnswer
from milecastle.server.pages.rendering import Renderer
from milecastle.server.pages.schema_forms import SchemaForm, form_fields, typed_in
from milecastle.server.pages.schema_forms import parsed as parsed_from
from milecastle.server.pages.table import PAGES
from tests.unit.server.browsing import Document


def parsed(schema: Any, typed: dict[str, str]) -> Any:
    return parsed_from(schema, typed, schema)


class Review(msgspec.Struct):
    verdict: Literal["yes", "no"]
    stars: Annotated[int, msgspec.Meta(ge=1, le=5)]
    words: str
    sure: bool
    weight: float | None = None
    tags: list[str] = []
    other: Review | None = None


@pytest.mark.parametrize(
    ("wanted", "control", "text", "value"),
    [
        (bool, "buttons", "true", True),
        (bool | None, "choice", "", None),
        (str, "lines", "a\r\nb", "a\nb"),
        (str, "lines", "", ""),
        (str | None, "lines", "", None),
        (date, "line", "2026-11-16", "2026-11-16"),
        (int, "number", " 12 ", 12),
        (float, "number", "1e3", 1000.0),
        (Literal["a", 2], "choice", "2", 2),
        (list[int], "json", "[1, 2]", [1, 2]),
        (dict[str, int], "json", '{"a": 1}', {"a": 1}),
        (int | str, "json", '"a"', "a"),
        (None, "json", "null", None),
    ],
)
def test_value_of_one_field(wanted: Any, control: str, text: str, value: Any) -> None:
    """Fails if a type has another control, or its text is read as another type."""
    schema = schema_of(wanted)
    (field,) = form_fields(schema)
    assert (field.name, field.control) == ("", control)
    assert parsed(schema, {"": text}) == value


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (bool, "yes"),
        (bool, ""),
        (int, "1.5"),
        (int, "true"),
        (int, "NaN"),
        (float, ""),
        (Literal["a"], '"sekrit"'),
        (date, "sekrit"),
        (list[int], '["sekrit"]'),
        (list[int], "[sekrit"),
        (None, "[" * 100_000),
        (None, '"\\ud800"'),
    ],
)
def test_invalid_text_is_refused_without_being_repeated(wanted: Any, text: str) -> None:
    """Fails if an answer is not checked, or is part of the message."""
    with pytest.raises(InvalidAnswer) as caught:
        parsed(schema_of(wanted), {"": text})
    assert "$" in str(caught.value)
    assert "sekrit" not in str(caught.value)


def test_object_has_a_field_for_each_member() -> None:
    """Fails if optional members are sent as empty text, or others are not JSON."""
    schema = schema_of(Review)
    fields = {one.name: one for one in form_fields(schema)}
    controls = {name: one.control for name, one in fields.items()}
    assert controls == {
        "verdict": "choice",
        "stars": "number",
        "words": "lines",
        "sure": "choice",
        "weight": "number",
        "tags": "json",
        "other": "json",
    }
    assert "minimum 1" in fields["stars"].hint
    typed = {"verdict": '"no"', "stars": "3", "words": "fine", "sure": "false", "tags": '["a"]'}
    assert parsed(schema, typed) == {
        "verdict": "no",
        "stars": 3,
        "words": "fine",
        "sure": False,
        "weight": None,
        "tags": ["a"],
        "other": None,
    }
    assert "tags" not in parsed(schema, {**typed, "tags": ""})
    with pytest.raises(InvalidAnswer, match=r"\$\.stars"):
        parsed(schema, {**typed, "stars": "9"})
    with pytest.raises(InvalidAnswer, match=r"\$\.sure is empty"):
        parsed(schema, {**typed, "sure": ""})


BROKEN: list[Any] = [
    {"$ref": "#/$defs/none"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": 7},
    {"enum": list(range(100_000))},
    {"properties": {str(n): {} for n in range(100_000)}},
    {"properties": {"": {}}},
    {"properties": 7, "required": 7, "type": ["a"], "anyOf": [1], "title": 7},
    {"type": {}, "format": {}, "anyOf": 7},
    [],
    7,
]


@pytest.mark.parametrize("schema", BROKEN)
def test_broken_schema_is_asked_for_as_json(schema: Any) -> None:
    """It is stored data. Fails if one of them raises, or makes a form of any size."""
    (field,) = form_fields(schema)
    assert field.control == "json"


def test_form_keeps_what_was_typed() -> None:
    """Also what is not printable, which is sent again. Fails if it is escaped or left out."""
    typed = {"verdict": '"no"', "words": "\n👩\u200d👧 <b>\x1b", "weight": "<x>", "tags": "["}
    template = (
        '{% from "schema_form.html" import schema_fields %}{{ schema_fields(f, "q", error=e) }}'
    )
    environment = Renderer(PAGES).environment
    names = [*Review.__struct_fields__]
    html = environment.from_string(template).render(
        f=form_fields(schema_of(Review), typed), e="<i>wrong</i>"
    )
    found = Document(html)
    assert found.one("p", role="alert").text == "<i>wrong</i>"
    assert [one.get("value") for one in found.all("input", name="field")] == names
    assert [one.text for one in found.all("textarea")] == ["\n\n👩\u200d👧 <b>\x1b", "\n[", "\n"]
    assert found.one("input", id="q-5").get("value") == "<x>"
    chosen = [one.get("value") for one in found.all("option") if "selected" in one.attributes]
    assert chosen == ['"no"']
    values = ("1", "2")
    assert typed_in(SchemaForm(field=("a%2F", "b"), value=values)) == {"a/": "1", "b": "2"}


def test_hostile_names_and_choices_are_escaped() -> None:
    """Fails if a label, a hint or a choice of a stored schema reaches the page as it is."""
    hostile = "<script>\x1b\u202e"
    member = {"enum": [hostile], "title": hostile, "format": hostile, "default": hostile}
    schema = {"properties": {hostile: member, "s": {**member, "enum": 1, "type": "string"}}}
    template = '{% from "schema_form.html" import schema_fields %}{{ schema_fields(f, "q") }}'
    html = Renderer(PAGES).environment.from_string(template).render(f=form_fields(schema))
    assert "<script>" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    (choice,) = [one.get("value") for one in Document(html).all("option") if one.get("value")]
    typed = {hostile: choice, "s": "text"}
    assert parsed({"properties": {hostile: member}}, typed) == {hostile: hostile}
