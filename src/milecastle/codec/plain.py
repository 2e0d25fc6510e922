"""Which values msgpack supports natively.

Types are compared exactly: a subclass of a plain type is not plain. Most state is plain, and
this check runs at every step, so whole containers are checked at the interpreter's C speed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any, Final

from milecastle.codec.bounds import MAX_DEPTH

SCALARS: Final[frozenset[type[object]]] = frozenset({type(None), bool, int, float, str, bytes})
"""Types that msgpack has; also the types of keys that its maps may have here."""

_MANY: Final = 16

kind_of: Final[Callable[[object], type[object]]] = type
"""``type(value)``, which type checkers otherwise treat as a type of unknown contents."""


def is_plain(value: Any, room: int = MAX_DEPTH) -> bool:
    kind = kind_of(value)  # pyright: ignore[reportUnknownVariableType] - of an Any
    if kind is list:
        items = value
    elif kind is dict:
        items = value.values()
    else:
        return kind in SCALARS
    if room == 0:
        return False
    if len(items) >= _MANY and _are_settled(items, room):
        return kind is list or _kinds(value) <= SCALARS
    if kind is dict:
        for key in value:
            if kind_of(key) not in SCALARS:
                return False
    for item in items:
        if kind_of(item) not in SCALARS and not is_plain(item, room - 1):
            return False
    return True


def _are_settled(items: Collection[object], room: int) -> bool:
    kinds = _kinds(items)
    return kinds <= SCALARS or (room > 1 and _are_rows(items, kinds))


def _kinds(items: Iterable[object]) -> set[type]:
    """The item types; counting one type is twice as fast as collecting a set."""
    kinds = list(map(type, items))
    first = kinds[0] if kinds else type(None)
    return {first} if kinds.count(first) == len(kinds) else set(kinds)


def _are_rows(items: Collection[Any], kinds: set[type]) -> bool:
    if kinds == {dict}:
        values: Iterable[object] = chain.from_iterable([row.values() for row in items])
        return _kinds(values) <= SCALARS and _kinds(chain.from_iterable(items)) <= SCALARS
    return kinds == {list} and _kinds(chain.from_iterable(items)) <= SCALARS
