"""The storable types that type hints mention, however deeply."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from types import SimpleNamespace
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from milecastle.codec.objects import is_storable

__all__ = ["storable_types"]

_ALIASES: Final = {"NewType": "__supertype__", "TypeAliasType": "__value__", "InitVar": "type"}


def storable_types(annotations: Iterable[object]) -> list[type]:
    """Dataclasses, pydantic models, structs and enums in ``annotations``, in order of finding.

    Forward references that cannot be resolved are skipped: a value of such a type is refused
    when it is written, with a hint to register it.
    """
    found: dict[type, None] = {}
    seen: set[int] = set()
    waiting = list(annotations)
    # Keeps what was seen alive, so that an id is not given twice.
    kept: list[object] = []
    while waiting:
        hint = waiting.pop()
        if id(hint) in seen:
            continue
        seen.add(id(hint))
        kept.append(hint)
        if isinstance(hint, type) and get_origin(hint) is None:
            if is_storable(hint):
                found[hint] = None
            waiting += _fields_of(hint)
        else:
            waiting += _parts_of(hint)
    return list(found)


def _parts_of(hint: Any) -> list[object]:
    """What a hint that is not a class is made of."""
    if isinstance(hint, (str, ForwardRef)) or hint is None:
        return []
    if isinstance(hint, (list, tuple)):
        return list(cast("Iterable[object]", hint))
    if isinstance(hint, Enum):
        return [type(hint)]
    if isinstance(hint, TypeVar):
        return [hint.__bound__, *hint.__constraints__]
    if get_origin(hint) is Annotated:
        return [hint.__origin__]
    inner = _ALIASES.get(type(hint).__name__)
    if inner is not None:
        return [getattr(hint, inner)]
    return [get_origin(hint), *get_args(hint)]


def _fields_of(cls: Any) -> list[object]:
    """The hints of a class's fields, when the class is one whose fields are stored."""
    if issubclass(cls, Enum) or not (is_storable(cls) or is_typeddict(cls)):
        return []
    hints: list[object] = []
    fields = getattr(cls, "model_fields", None)
    if isinstance(fields, dict):
        hints += [field.annotation for field in cast("dict[str, Any]", fields).values()]
    return [*hints, *_hints_of(cls)]


def _hints_of(cls: type) -> list[object]:
    try:
        return list(get_type_hints(cls, include_extras=True).values())
    except Exception:
        return [hint for base in cls.__mro__ for hint in _own_hints(base)]


def _own_hints(cls: type) -> list[object]:
    """The hints of one class, one by one, without those that cannot be resolved."""
    space = vars(sys.modules.get(cls.__module__, SimpleNamespace()))
    hints: list[object] = []
    for name, hint in _annotations(cls).items():
        holder: Any = SimpleNamespace(__annotations__={name: hint})
        try:
            hints += get_type_hints(holder, space, dict(vars(cls)), include_extras=True).values()
        except Exception:  # noqa: S112 - resolving runs the user's own annotation text
            continue
    return hints


def _annotations(cls: type) -> dict[str, object]:
    try:
        return dict(getattr(cls, "__annotations__", {}))
    except NameError:  # Python 3.14 resolves them when they are read.
        return {}
