"""The difference between two JSON values as JSON Patch (RFC 6902)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from milecastle.views.values import anything

__all__ = ["json_patch"]


def json_patch(old: Any, new: Any) -> list[dict[str, Any]]:
    """The operations that make ``new`` of ``old``, in the order in which they are applied."""
    return list(_operations("", old, new))


def _operations(path: str, old: object, new: object) -> Iterator[dict[str, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _of_objects(path, anything(old), anything(new))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _of_arrays(path, anything(old), anything(new))
    elif not _is_same(anything(old), anything(new)):
        yield {"op": "replace", "path": path, "value": new}


def _is_same(old: object, new: object) -> bool:
    return type(old) is type(new) and old == new  # True == 1


def _of_objects(path: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in old.items():
        place = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name in new:
            yield from _operations(place, value, new[name])
        else:
            yield {"op": "remove", "path": place}
    for name in (name for name in new if name not in old):
        place = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        yield {"op": "add", "path": place, "value": new[name]}


def _of_arrays(path: str, old: list[Any], new: list[Any]) -> Iterator[dict[str, Any]]:
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        yield from _operations(f"{path}/{at}", one, other)
    for at in range(len(old) - 1, len(new) - 1, -1):
        yield {"op": "remove", "path": f"{path}/{at}"}
    for value in new[len(old) :]:
        yield {"op": "add", "path": f"{path}/-", "value": value}
