"""Annotations of classes: their hints, and the classes they mention.

An annotation is the user's code: one that cannot be resolved is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Annotated, Any, Final, ForwardRef, TypeVar, cast, get_args, get_origin
from typing import get_type_hints as type_hints

_ALIASES: Final = {"NewType": "__supertype__", "TypeAliasType": "__value__", "InitVar": "type"}


def classes_in(
    annotations: Iterable[object], inside: Callable[[type], Iterable[object]]
) -> list[type]:
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
            found[hint] = None
            waiting += inside(hint)
        else:
            waiting += _parts_of(hint)
    return list(found)


def _parts_of(hint: Any) -> list[object]:
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


def hints_of(cls: type) -> dict[str, Any]:
    try:
        return type_hints(cls, include_extras=True)
    except Exception:
        bases = [base for base in reversed(cls.__mro__) if base is not object]
        return {name: hint for base in bases for name, hint in _own_hints(base)}


def _own_hints(cls: type) -> Iterator[tuple[str, Any]]:
    space = vars(sys.modules.get(cls.__module__, SimpleNamespace()))
    for name, hint in own_annotations(cls).items():
        holder: Any = SimpleNamespace(__annotations__={name: hint})
        try:
            yield from type_hints(holder, space, dict(vars(cls)), include_extras=True).items()
        except Exception:  # noqa: S112 - resolving runs the user's own annotation text
            continue


def own_annotations(cls: type) -> dict[str, object]:
    try:
        return dict(getattr(cls, "__annotations__", {}))
    except NameError:  # Python 3.14 resolves them when they are read.
        return {}
