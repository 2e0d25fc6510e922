"""The OpenAPI document, generated from the route table and its types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec
import msgspec.json

from milecastle.server.documents import WaitQuery
from milecastle.server.problems import ProblemDocument
from milecastle.server.request import Endpoint
from milecastle.version import __version__

_PLACE: Final = "#/components/schemas/{name}"


def describe(endpoints: Iterable[Endpoint], events: Iterable[type]) -> dict[str, Any]:
    table = list(endpoints)
    types = [*dict.fromkeys([*_types(table), *events, ProblemDocument])]
    _, components = msgspec.json.schema_components(types, ref_template=_PLACE)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in table:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Milecastle", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(table: Iterable[Endpoint]) -> Iterator[type]:
    for endpoint in table:
        yield from (kind for kind in endpoint.answers.values() if isinstance(kind, type))
        if endpoint.body is not None:
            yield endpoint.body


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": endpoint.handler.__name__,
        "parameters": [*_of_path(endpoint), *_of_query(endpoint)],
        "responses": {
            **{str(code): _answer(code, kind) for code, kind in endpoint.answers.items()},
            **{str(code): _problem(code) for code in endpoint.all_problems},
            "default": _problem(500),
        },
    }
    if endpoint.scope is not None:
        found["security"] = [{"token": []}]
        found["description"] = f"Needs a token with the scope {endpoint.scope}."
        if endpoint.query is WaitQuery:
            found["description"] += " With wait, it needs the scope read as well."
    if endpoint.body is not None:
        content = {"application/json": {"schema": _reference(endpoint.body)}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _of_path(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _of_query(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for field in msgspec.structs.fields(endpoint.query):
        yield {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": msgspec.json.schema(field.type),
        }


def _answer(code: int, kind: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(code).phrase}
    if isinstance(kind, type):
        described["content"] = {"application/json": {"schema": _reference(kind)}}
    elif kind:
        found = "object" if kind == "application/json" else "string"
        described["content"] = {kind: {"schema": {"type": found}}}
    return described


def _problem(code: int) -> dict[str, Any]:
    schema = _reference(ProblemDocument)
    return {
        "description": HTTPStatus(code).phrase,
        "content": {"application/problem+json": {"schema": schema}},
    }


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": _PLACE.format(name=kind.__name__)}
