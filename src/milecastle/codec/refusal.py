"""Why a value cannot be stored, and where it stands.

A `Refusal` is raised at the value. Each container that it passes on its way up adds its own
segment, so that a path costs nothing while all goes well.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["Refusal", "hint_for", "key_segment", "type_name"]

_KEY_LENGTH: Final = 40
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
    "ZoneInfo": "keep the name of the zone instead",
    "PosixPath": "convert it with str(...)",
    "WindowsPath": "convert it with str(...)",
}
_BUILTIN: Final = (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict)
_BASES: Final = (*_BUILTIN, set, frozenset)


class Refusal(Exception):
    """A value that cannot be stored. ``segments`` lead to it, the innermost first."""

    def __init__(self, reason: str, kind: type) -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = type_name(kind)
        self.segments: list[str] = []

    def within(self, segment: str) -> None:
        """Note one more container on the way up."""
        self.segments.append(segment)

    def path(self, root: str) -> str:
        """The place of the value, seen from ``root``; a very long path without its middle."""
        segments = self.segments[::-1]
        if len(segments) > _PATH_LENGTH:
            segments[_PATH_LENGTH // 2 : -_PATH_LENGTH // 2] = ["..."]
        return root + "".join(segments)


def type_name(kind: type) -> str:
    """A type's name for messages, with its module unless it is built in."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def key_segment(key: object) -> str:
    """How a dict key shows in a path: short, on one line, other keys than str by type only."""
    if type(key) is not str:
        return f"[<{type(key).__name__}>]"
    if len(key) <= _KEY_LENGTH and key.isidentifier() and key.isascii():
        return f".{key}"
    short = key if len(key) <= _KEY_LENGTH else key[:_KEY_LENGTH] + "..."
    return f"[{short!a}]"


def hint_for(kind: Any) -> str:
    """The reason for refusing a value of an unknown type, with what to do instead."""
    name = type_name(kind)
    root = kind.__module__.partition(".")[0]
    if root in _RESOURCES:
        advice = "open files, locks and sockets cannot be stored; keep an id or a path instead"
    elif kind.__name__ in _CODE or issubclass(kind, type):
        advice = "functions, classes and modules cannot be stored; keep a name instead"
    elif kind.__name__ in _CONVERSIONS:
        advice = _CONVERSIONS[kind.__name__]
    elif _is_declarable(kind):
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
    return f"{name} is not a type of this state: {advice}"


def _is_declarable(kind: Any) -> bool:
    from enum import Enum

    marks = ("__dataclass_fields__", "__struct_fields__", "__pydantic_validator__")
    return issubclass(kind, Enum) or any(hasattr(kind, mark) for mark in marks)
