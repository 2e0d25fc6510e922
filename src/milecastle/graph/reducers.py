"""Reducers: how an update is merged into the current value of a channel.

The built-in ones are pure and replayable, so a log stores their update; the result of a custom
reducer is stored as it is and never computed again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

SET: Final = 0
"""The code of a plain overwrite in a log. The codes of ``BUILTIN`` are on disk: never renumber."""

APPEND: Final = 1
"""The code of an appended list in a log."""


def last(old: Any, update: Any) -> Any:
    """Take the newest value. This is the default without a reducer."""
    return update


def append(old: list[Any], update: Any) -> list[Any]:
    """Extend a list by the items of ``update``, a list or tuple."""
    if update.__class__ is list:
        joined: list[Any] = old + update
        return joined
    if not isinstance(update, (list, tuple)):
        raise TypeError(f"append takes a list of items, not {type(update).__name__}: wrap it in []")
    return [*old, *update]


def merge(old: dict[Any, Any], update: Any) -> dict[Any, Any]:
    """Set the keys of ``update``, a mapping, in a dict; the others stay."""
    if not isinstance(update, Mapping):
        raise TypeError(f"merge takes a dict, not {type(update).__name__}")
    return {**old, **update}


def add(old: Any, update: Any) -> Any:
    """``old + update``."""
    return old + update


def maximum(old: Any, update: Any) -> Any:
    """The larger of the two."""
    return max(old, update)


def minimum(old: Any, update: Any) -> Any:
    """The smaller of the two."""
    return min(old, update)


def union(old: set[Any], update: Any) -> set[Any]:
    """Add the items of ``update``, a set, list or tuple, to a set."""
    if not isinstance(update, (set, frozenset, list, tuple)):
        raise TypeError(f"union takes a set or a list of items, not {type(update).__name__}")
    return {*old, *update}


class Reducer(msgspec.Struct, frozen=True):
    """A reducer of a channel: its name in the manifest, its function, its code in a log.

    ``empty`` makes the value that the channel has before anything was written; without it the
    first update is the value.
    """

    name: str
    function: Callable[[Any, Any], Any]
    code: int = SET
    empty: Callable[[], Any] | None = None


LAST: Final = Reducer("last", last)

BUILTIN: Final = (
    LAST,
    Reducer("append", append, APPEND, list),
    Reducer("merge", merge, 2, dict),
    Reducer("add", add, 3),
    Reducer("maximum", maximum, 4),
    Reducer("minimum", minimum, 5),
    Reducer("union", union, 6, set),
)

_SPELLINGS: Final = {operator.add: add, max: maximum, min: minimum}
"""Python functions that do what a built-in reducer does."""


def builtin_reducer(function: object) -> Reducer | None:
    """The built-in reducer of this function, if it is one."""
    for spelling, known in _SPELLINGS.items():
        if function is spelling:
            function = known
    return next((reducer for reducer in BUILTIN if reducer.function is function), None)


def reducer_of(function: Callable[[Any, Any], Any]) -> Reducer:
    """The built-in reducer of this function, or one for the user's own."""
    known = builtin_reducer(function)
    if known is not None:
        return known
    named: Any = function
    while isinstance(named, partial):
        named = named.func
    name = str(getattr(named, "__qualname__", type(named).__qualname__))
    taken = any(reducer.name == name for reducer in BUILTIN)
    return Reducer(f"own {name}" if taken else name, function)
