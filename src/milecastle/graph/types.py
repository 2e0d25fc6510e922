"""Reading annotations: the stable name of a type, and the classes whose instances fit it."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, Union, cast, get_args, get_origin

__all__ = ["fitting_classes", "is_typed_dict", "is_union", "type_name", "unfolded"]

_WIDENED: dict[type, tuple[type, ...]] = {float: (float, int), complex: (complex, float, int)}


def is_typed_dict(annotation: object) -> bool:
    """Whether this is a TypedDict class (of ``typing`` or ``typing_extensions``)."""
    return isinstance(annotation, type) and hasattr(annotation, "__required_keys__")


def is_union(origin: object) -> bool:
    """Whether this is the origin of a union, in either spelling."""
    return origin is Union or origin is types.UnionType


def unfolded(annotation: Any) -> Any:
    """What a ``type`` alias stands for; anything else is itself."""
    while type(annotation).__name__ == "TypeAliasType":
        annotation = annotation.__value__
    return annotation


def type_name(annotation: object) -> str:
    """A name that is equal in every process, on every Python version and in every spelling.

    Modules are left out: a script and the same file imported must agree.
    """
    return _name(annotation, ())


def _name(annotation: Any, aliases: tuple[object, ...]) -> str:
    """``aliases`` are those that are being unfolded: one may well refer to itself."""
    if type(annotation).__name__ == "TypeAliasType" and annotation not in aliases:
        return _name(annotation.__value__, (*aliases, annotation))
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is ...:
        return "..."
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, list):
        return _listed(cast("list[object]", annotation), aliases)
    origin = get_origin(annotation)
    if origin is not None:
        return _generic_name(origin, annotation, aliases)
    name = getattr(annotation, "__qualname__", None) or getattr(annotation, "__name__", None)
    return str(name or getattr(annotation, "__forward_arg__", type(annotation).__qualname__))


def _generic_name(origin: object, annotation: object, aliases: tuple[object, ...]) -> str:
    arguments = get_args(annotation)
    if origin is typing.Annotated:
        return _name(arguments[0], aliases)
    if is_union(origin):
        members = {_name(member, aliases) for member in arguments}
        return " | ".join(sorted(members, key=lambda name: (name == "None", name)))
    if origin is Literal:
        return f"Literal[{', '.join(sorted({_literal_name(value) for value in arguments}))}]"
    name = _name(origin, aliases)
    return f"{name}{_listed(arguments, aliases)}" if arguments else name


def _listed(arguments: typing.Iterable[object], aliases: tuple[object, ...]) -> str:
    return f"[{', '.join(_name(argument, aliases) for argument in arguments)}]"


def _literal_name(value: object) -> str:
    # ascii: which characters repr escapes is not the same on every Python version.
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    return ascii(value)


def fitting_classes(annotation: Any) -> tuple[type, ...] | None:
    """The classes whose instances fit, looking no deeper than the outermost type.

    ``None`` means that anything fits, or that it cannot be told.
    """
    annotation = unfolded(annotation)
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return fitting_classes(get_args(annotation)[0])
    if is_union(origin):
        return _fitting_any(get_args(annotation))
    if origin is Literal:
        values: tuple[object, ...] = get_args(annotation)
        return tuple({type(value): None for value in values})
    if annotation is None:
        return (type(None),)
    supertype = getattr(annotation, "__supertype__", None)
    if supertype is not None:
        return fitting_classes(supertype)
    return _fitting_class(annotation if origin is None else origin)


def _fitting_any(members: tuple[object, ...]) -> tuple[type, ...] | None:
    found: dict[type, None] = {}
    for member in members:
        classes = fitting_classes(member)
        if classes is None:
            return None
        found.update(dict.fromkeys(classes))
    return tuple(found)


def _fitting_class(cls: Any) -> tuple[type, ...] | None:
    if not isinstance(cls, type) or cls is object:
        return None
    if is_typed_dict(cls):
        return (dict, Mapping)
    if getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False):
        return None
    if cls.__module__ == "typing":
        return None  # Any, IO and their like: real values are no instances of them
    return _WIDENED.get(cls, (cls,))
