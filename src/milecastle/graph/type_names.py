"""Checking values against the names of their types, as a manifest has them.

Without the classes, only names can be compared: anything a name does not tell is not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, cast

from milecastle.model.manifest import TypeInfo

_DEPTH: Final = 50
"""Values that are nested deeper are not checked."""

_CLASSES: Final[Mapping[str, tuple[type, ...]]] = {
    "None": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "complex": (complex, float, int),
    "str": (str,),
    "bytes": (bytes,),
    "bytearray": (bytearray,),
    "list": (list,),
    "dict": (dict,),
    "tuple": (tuple,),
    "set": (set,),
    "frozenset": (frozenset,),
}

Types = Mapping[str, TypeInfo]
WrongType = tuple[str, str, str]
"""The path of a value that does not match, the name of its type, and the declared one."""


def misfit_of(
    value: object, declared: str, types: Types, path: str, depth: int = 0
) -> WrongType | None:
    first: WrongType | None = None
    for member in _split(declared, "|"):
        found = _against(value, member, types, path, depth)
        if found is None:
            return None
        # Of the members of a union, the one whose outermost type matches says more.
        if first is None or len(found[0]) > len(first[0]):
            first = found
    if first is not None and first[0] == path:
        return path, type(value).__name__, declared
    return first


def _against(value: Any, member: str, types: Types, path: str, depth: int) -> WrongType | None:
    name, _, rest = member.partition("[")
    arguments = _split(rest.removesuffix("]"), ",") if rest else ()
    wrong = path, type(value).__name__, member
    if name == "Literal":
        known = f"{type(value).__qualname__}.{value.name}" if isinstance(value, Enum) else None
        return None if (known or ascii(value)) in arguments else wrong
    classes, described = _CLASSES.get(name), types.get(name)
    if described is not None and described.kind:
        if described.kind == "dict":
            classes = (Mapping,)
        elif not any(cls.__qualname__ == name for cls in type(value).__mro__):
            return wrong
    if classes is not None and not isinstance(value, classes):
        return wrong
    if depth == _DEPTH:
        return None
    parts = _fields(value, described) if described else _items(value, name, arguments)
    for segment, part, declared in parts:
        found = misfit_of(part, declared, types, path + segment, depth + 1)
        if found is not None:
            return found
    return None


def _fields(value: Any, described: TypeInfo) -> Iterator[tuple[str, object, str]]:
    if described.kind not in ("dict", "record", "model"):
        return
    for field in described.fields:
        if described.kind == "dict":
            if field.name in value:
                yield f".{field.name}", value[field.name], field.type
        elif hasattr(value, field.name):
            yield f".{field.name}", getattr(value, field.name), field.type


def _items(value: Any, name: str, arguments: tuple[str, ...]) -> Iterator[tuple[str, object, str]]:
    if name in ("list", "set", "frozenset") and len(arguments) == 1:
        items = cast("Iterable[object]", value)
        yield from ((f"[{at}]", item, arguments[0]) for at, item in enumerate(items))
    elif name == "tuple" and len(arguments) == 2 and arguments[1] == "...":
        yield from ((f"[{at}]", item, arguments[0]) for at, item in enumerate(value))
    elif name == "tuple" and len(arguments) == len(value):
        pairs = zip(value, arguments, strict=True)
        yield from ((f"[{at}]", item, declared) for at, (item, declared) in enumerate(pairs))
    elif name == "dict" and len(arguments) == 2:
        for at, (key, item) in enumerate(value.items()):
            yield f"[key {at}]", key, arguments[0]
            yield f"[key {at}]", item, arguments[1]


@lru_cache(maxsize=1024)
def _split(text: str, separator: str) -> tuple[str, ...]:
    parts, depth, quote, escaped = [""], 0, "", False
    for character in text:
        if quote:
            escaped, closes = character == "\\" and not escaped, character == quote and not escaped
            quote = "" if closes else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "[(") - (character in "])")
        if character == separator and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts)
