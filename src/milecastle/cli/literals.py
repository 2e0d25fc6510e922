"""Values as Python source, for tests that are written from recorded states."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

from milecastle.cli.values import anything
from milecastle.errors import InvalidRequest

__all__ = ["Source"]

_INDENT = "    "
_WIDTH = 88
_CALLS = {"datetime": {"date", "datetime", "time", "timedelta"}, "decimal": {"Decimal"}}


class Source:
    """Writes values as source and remembers what they need to be imported."""

    def __init__(self) -> None:
        self.imports: set[str] = set()

    def of(self, value: Any, path: str = "$", depth: int = 0) -> str:
        """The source of a value; ``InvalidRequest`` names what cannot be written."""
        if value is None or type(value) in (bool, int, str, bytes):
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if isinstance(value, Mapping):
            return self._mapping(anything(value), path, depth)
        if type(value) in (list, tuple, set, frozenset):
            return self._items(value, path, depth)
        return self._object(value, path, depth)

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> str:
        parts = [
            f"{self.of(key, path, depth + 1)}: {self.of(item, f'{path}.{key}', depth + 1)}"
            for key, item in value.items()
        ]
        return _laid_out("{", parts, "}", depth)

    def _items(self, value: Any, path: str, depth: int) -> str:
        parts = [self.of(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(value)]
        if type(value) is list:
            return _laid_out("[", parts, "]", depth)
        if type(value) is tuple:
            return _laid_out("(", parts + [""] * (len(parts) == 1), ")", depth)
        inner = _laid_out("{", sorted(parts), "}", depth) if parts else ""
        if type(value) is set:
            return inner or "set()"
        return f"frozenset({inner})"

    def _object(self, value: Any, path: str, depth: int) -> str:
        kind: type[Any] = anything(value.__class__)
        if isinstance(value, enum.Enum):
            return f"{self._name(kind, path)}.{value.name}"
        if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            parts = [
                f"{field.name}={self.of(getattr(value, field.name), path, depth + 1)}"
                for field in fields
            ]
            return _laid_out(f"{self._name(kind, path)}(", parts, ")", depth)
        if kind.__module__ == "uuid" or kind.__name__ in _CALLS.get(kind.__module__, ()):
            root = kind.__module__
            self.imports.add(f"import {root}")
            text = repr(value)
            return text if text.startswith(f"{root}.") else f"{root}.{text}"
        raise InvalidRequest(
            f"the value at {path} is {kind.__qualname__}, which cannot be written as source"
        )

    def _name(self, kind: type, path: str) -> str:
        if "." in kind.__qualname__:
            raise InvalidRequest(
                f"the value at {path} is {kind.__qualname__}, which no module has at its top"
            )
        self.imports.add(f"from {kind.__module__} import {kind.__qualname__}")
        return kind.__qualname__


def _laid_out(opening: str, parts: list[str], closing: str, depth: int) -> str:
    """On one line if it fits, else one part a line."""
    line = f"{opening}{', '.join(parts).rstrip()}{closing}"
    if len(line) + depth * len(_INDENT) <= _WIDTH and "\n" not in line:
        return line
    inner = _INDENT * (depth + 1)
    body = "".join(f"{inner}{part},\n" for part in parts if part)
    return f"{opening}\n{body}{_INDENT * depth}{closing}"
