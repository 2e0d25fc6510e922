"""Why a value cannot be stored, and where it is.

A `Refusal` is raised at the value. Each container on the way up adds its own segment, so a
path costs nothing unless there is an error.

A key of a dict is data: messages name its position (``$.people[key 3]``), and only the attribute
``path`` of the error has the key. Class fields and state keys are names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from enum import Enum
from typing import Any, Final, cast

from msgspec.msgpack import Decoder, Ext

from milecastle.codec import codes
from milecastle.support.printable import path_segment

_PATH_LENGTH: Final = 40
_RESOURCES: Final = frozenset(
    {"_io", "_thread", "threading", "socket", "_socket", "ssl", "_ssl", "sqlite3", "subprocess"}
    | {"queue", "_queue", "multiprocessing", "asyncio", "select", "mmap", "tempfile"}
)
_CODE: Final = frozenset(
    {"function", "builtin_function_or_method", "method", "module", "type", "coroutine"}
    | {"generator", "async_generator", "code", "frame", "partial", "method_descriptor"}
)
_CONVERSIONS: Final = {
    "memoryview": "convert it with bytes(...)",
    "range": "convert it with list(...)",
    "deque": "convert it with list(...)",
    "array": "convert it with list(...)",
    "mappingproxy": "convert it with dict(...)",
    "ZoneInfo": "store the name of the zone instead",
    "PosixPath": "convert it with str(...)",
    "WindowsPath": "convert it with str(...)",
}
_DECLARABLE: Final = ("__dataclass_fields__", "__struct_fields__", "__pydantic_validator__")
_BUILTIN: Final = (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict)
_BASES: Final = (*_BUILTIN, set, frozenset)


class Refusal(Exception):
    """An unstorable value. ``segments`` lead to it, innermost first."""

    def __init__(self, reason: str, kind: type) -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = type_name(kind)
        self.segments: list[tuple[str, str]] = []

    def within(self, segment: str, shown: str = "") -> None:
        self.segments.append((segment, shown or segment))

    def path(self, root: str, *, shown: bool = False) -> str:
        """The value's path from ``root``; the middle of a very long path is omitted."""
        segments = [segment[shown] for segment in reversed(self.segments)]
        if len(segments) > _PATH_LENGTH:
            segments[_PATH_LENGTH // 2 : -_PATH_LENGTH // 2] = ["..."]
        return root + "".join(segments)


def type_name(kind: type) -> str:
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def key_position(index: int) -> str:
    return f"[key {index}]"


def hint_for(kind: Any) -> str:
    name = type_name(kind)
    root = kind.__module__.partition(".")[0]
    if root in _RESOURCES:
        advice = "open files, locks and sockets cannot be stored; store an id or a path instead"
    elif kind.__name__ in _CODE or issubclass(kind, type):
        advice = "functions, classes and modules cannot be stored; store a name instead"
    elif kind.__name__ in _CONVERSIONS:
        advice = _CONVERSIONS[kind.__name__]
    elif issubclass(kind, Enum) or any(hasattr(kind, mark) for mark in _DECLARABLE):
        advice = (
            "annotate the state's field with it, or register it with "
            f"milecastle.register_type({kind.__name__})"
        )
    else:
        base = next((base for base in _BASES if issubclass(kind, base)), None)
        convert = f"convert it with {base.__name__}(...), or " if base else ""
        advice = (
            f"{convert}register it with milecastle.register_type({kind.__name__}, "
            "to_plain=..., from_plain=...)"
        )
    return f"{name} is not a type that this state declares: {advice}"


_open: Final = Decoder().decode
_CONTAINERS: Final = frozenset({codes.TUPLE, codes.SET, codes.FROZENSET, codes.PAIRS})
_OBJECTS: Final = frozenset({codes.RECORD, codes.MODEL, codes.ADAPTED})
_TIMESTAMPS: Final = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")


def has_timestamp(data: bytes) -> bool:
    if b"\xff" not in data or not any(start in data for start in _TIMESTAMPS):
        return False
    return find_bad(data, lambda _code, _body: None) is not None


def find_bad(data: bytes, read: Callable[[int, memoryview], object]) -> str | None:
    try:
        return _search(_open(data), "$", read)
    except MemoryError:
        raise
    except Exception:
        return "$"


def _search(part: Any, path: str, read: Callable[[int, memoryview], object]) -> str | None:
    if isinstance(part, datetime):
        return path
    for segment, inner in _inside(part):
        found = _search(inner, path + segment, read)
        if found is not None:
            return found
    if isinstance(part, Ext):
        try:
            read(part.code, memoryview(part.data))
        except MemoryError:
            raise
        except Exception:
            return path
    return None


def _inside(part: Any) -> Iterator[tuple[str, object]]:
    if isinstance(part, list):
        items = cast("list[object]", part)
        yield from ((f"[{index}]", item) for index, item in enumerate(items))
    elif isinstance(part, dict):
        values = cast("dict[object, object]", part)
        for index, (key, value) in enumerate(values.items()):
            yield "{key}", key
            yield key_position(index), value
    elif isinstance(part, Ext) and part.code in _CONTAINERS:
        yield from _inside(_open(part.data))
    elif isinstance(part, Ext) and part.code in _OBJECTS:
        _name, *sections = _open(part.data)
        for section in sections:
            if isinstance(section, dict):
                fields = cast("dict[object, object]", section)
                yield from ((path_segment(name), value) for name, value in fields.items())
            else:
                yield "", section
