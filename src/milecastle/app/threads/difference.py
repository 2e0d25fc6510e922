from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from milecastle.model.notebook import card, table, value_text

_SHOWN = 100

_SCALARS = frozenset({bool, int, float, str, bytes})


class Change(msgspec.Struct, frozen=True):
    """One difference: its path (``$.docs[3].title``), its kind, and both values."""

    path: str
    kind: Literal["added", "removed", "changed"]
    old: Any = None
    new: Any = None


class Changes(list[Change]):
    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = (
            (
                one.path,
                one.kind,
                "" if one.kind == "added" else value_text(one.old),
                "" if one.kind == "removed" else value_text(one.new),
            )
            for one in self[:_SHOWN]
        )
        facts = {"differences": len(self)}
        if len(self) > _SHOWN:
            facts["shown"] = _SHOWN
        return card("Difference", facts, table(["path", "kind", "old", "new"], rows, status=1))


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    return Changes(_compare("$", old, new))


def _compare(path: str, old: Any, new: Any) -> Iterator[Change]:
    alike = type(old) is type(new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _compare_mappings(path, _any(old), _any(new))
    elif alike and isinstance(old, list | tuple):
        yield from _compare_sequences(path, _any(old), _any(new))
    elif not alike or not _equal(old, new):
        yield Change(path, "changed", _any(old), _any(new))


def _any(value: Any) -> Any:
    return value


def _compare_mappings(
    path: str, old: Mapping[Any, Any], new: Mapping[Any, Any]
) -> Iterator[Change]:
    for key, value in old.items():
        here = f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"
        if key in new:
            yield from _compare(here, value, new[key])
        else:
            yield Change(here, "removed", old=value)
    for key, value in new.items():
        if key not in old:
            here = f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"
            yield Change(here, "added", new=value)


def _compare_sequences(path: str, old: list[Any], new: list[Any]) -> Iterator[Change]:
    shared = min(len(old), len(new))
    for index, (one, other) in enumerate(zip(old, new, strict=False)):
        if one is other or (type(one) in _SCALARS and type(one) is type(other) and one == other):
            continue  # long lists of these are compared without building their paths
        yield from _compare(f"{path}[{index}]", one, other)
    for index in range(shared, len(old)):
        yield Change(f"{path}[{index}]", "removed", old=old[index])
    for index in range(shared, len(new)):
        yield Change(f"{path}[{index}]", "added", new=new[index])


def _equal(old: Any, new: Any) -> bool:
    try:
        return old is new or bool(old == new)
    except Exception:  # values with their own equality, such as arrays
        return False
