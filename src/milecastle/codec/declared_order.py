"""JSON schemas in declaration order: msgspec sorts choices and TypedDict fields."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

_Values = frozenset[tuple[type[Any], Any]]
_Orders = dict[_Values, tuple[Any, ...]]


def in_declared_order(schema: Any, annotation: Any) -> Any:
    orders: _Orders = {}
    _collect(annotation, orders, set())
    return _ordered(schema, orders) if orders else schema


def _collect(annotation: Any, orders: _Orders, seen: set[int]) -> None:
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        orders.setdefault(_set(parts), parts)
        return
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        values = tuple(member.value for member in annotation)
        orders.setdefault(_set(values), values)
        return
    if isinstance(annotation, type) and getattr(annotation, "__annotations__", None):
        try:
            hints = get_type_hints(annotation)
        except Exception:  # annotations are code, and may raise anything
            return
        orders.setdefault(_set(hints), tuple(hints))
        parts = (*parts, *hints.values())
    for part in parts:
        _collect(part, orders, seen)


def _set(values: Iterable[Any]) -> _Values:
    try:
        return frozenset((value.__class__, value) for value in values)
    except TypeError:  # not hashable
        return frozenset()


def _ordered(schema: Any, orders: _Orders) -> Any:
    if isinstance(schema, list | tuple):
        return [_ordered(one, orders) for one in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    given = cast("Mapping[str, Any]", schema)
    found = {name: _ordered(part, orders) for name, part in given.items()}
    if isinstance(found.get("enum"), list):
        choices = cast("list[Any]", found["enum"])
        found["enum"] = list(orders.get(_set(choices), tuple(choices)))
    if isinstance(found.get("properties"), dict):
        known = cast("dict[str, Any]", found["properties"])
        found["properties"] = {name: known[name] for name in orders.get(_set(known), tuple(known))}
        if isinstance(found.get("required"), list):
            wanted = cast("list[str]", found["required"])
            found["required"] = [name for name in found["properties"] if name in wanted]
    return found
