"""Reducers: merging an update into a channel's current value.

The built-in ones are pure and replayable, so a log stores their update; a custom reducer's result
is stored as it is and never computed again. One that has a ``delta`` says instead which
built-in reducer to apply, with which update: that is applied and stored, and it is not called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from milecastle.model.message import check_topic

SET: Final = 0
"""The code of a plain overwrite in a log. The codes of ``BUILTIN`` are on disk: never renumber."""


def last(old: Any, update: Any) -> Any:
    """Take the newest value. This is the default without a reducer."""
    return update


def append(old: list[Any], update: Any) -> list[Any]:
    """Extend a list by the items in ``update``, a list or tuple."""
    if update.__class__ is list:
        joined: list[Any] = old + update
        return joined
    if not isinstance(update, (list, tuple)):
        raise TypeError(f"append takes a list of items, not {type(update).__name__}: wrap it in []")
    return [*old, *update]


def merge(old: dict[Any, Any], update: Any) -> dict[Any, Any]:
    """Set ``update``'s keys, a mapping, in a dict; the others stay."""
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
    """Add the items in ``update``, a set, list or tuple, to a set."""
    if not isinstance(update, (set, frozenset, list, tuple)):
        raise TypeError(f"union takes a set or a list of items, not {type(update).__name__}")
    return {*old, *update}


def edit(old: list[Any], update: list[Any]) -> list[Any]:
    """Replace and remove list items by position, then append others.

    ``update`` is ``[length, changes, tail]``: the length it expects the list to have; for each
    changed position, in order, ``[position, item]`` or ``[position]``; the items to append.
    """
    length, _, tail = update
    if len(old) != length:
        raise TypeError("an edit was made for another list")
    changed = _changes(update)
    return append([item for at, one in enumerate(old) for item in changed.get(at, (one,))], tail)


def _changes(update: list[Any]) -> dict[int, list[Any]]:
    length, changes, _ = update
    changed = [(position, item) for position, *item in changes]
    places = [-1, *(position for position, _ in changed), length]
    if any(map(operator.ge, places, places[1:])) or any(len(item) > 1 for _, item in changed):
        raise TypeError("an edit changes positions that are not in the list")
    return dict(changed)


def join_edits(first: list[Any], second: list[Any]) -> list[Any]:
    length, _, tail = first
    changed = _changes(first)
    places = [at for at in range(length) if at not in changed or changed[at]]
    if second[0] != len(places) + len(tail):
        raise TypeError("an edit was made for another list")
    added: list[list[Any]] = []
    for position, item in _changes(second).items():
        if position < len(places):
            changed[places[position]] = item
        else:
            added.append([position - len(places), *item])
    changes = [[position, *item] for position, item in sorted(changed.items())]
    return [length, changes, edit(tail, [len(tail), added, second[2]])]


class Reducer(msgspec.Struct, frozen=True):
    """A channel's reducer: its name in the manifest, its function, its code in a log.

    ``empty`` makes the value the channel has before anything was written; without it the first
    update is the value. ``delta`` gives, for the old value and an update, the built-in reducer and
    its update applied instead. ``prepare`` completes an update before it is stored or
    compared; a completed one stays unchanged.
    """

    name: str
    function: Callable[[Any, Any], Any]
    code: int = SET
    empty: Callable[[], Any] | None = None
    delta: Callable[[Any, Any], tuple[Reducer, Any]] | None = None
    prepare: Callable[[Any], Any] | None = None


LAST: Final = Reducer("last", last)
APPEND: Final = Reducer("append", append, 1, list)
EDIT: Final = Reducer("edit", edit, 7, list)

BUILTIN: Final = (
    LAST,
    APPEND,
    Reducer("merge", merge, 2, dict),
    Reducer("add", add, 3),
    Reducer("maximum", maximum, 4),
    Reducer("minimum", minimum, 5),
    Reducer("union", union, 6, set),
    EDIT,
)

_SPELLINGS: Final = {operator.add: add, max: maximum, min: minimum}
"""Python functions that do what a built-in reducer does."""


def builtin_reducer(function: object) -> Reducer | None:
    for spelling, known in _SPELLINGS.items():
        if function is spelling:
            function = known
    return next((reducer for reducer in BUILTIN if reducer.function is function), None)


def reducer_of(function: Callable[[Any, Any], Any]) -> Reducer:
    known = builtin_reducer(function)
    if known is not None:
        return known
    named: Any = function
    while isinstance(named, partial):
        named = named.func
    name = str(getattr(named, "__qualname__", type(named).__qualname__))
    taken = any(reducer.name == name for reducer in BUILTIN)
    return Reducer(f"own {name}" if taken else name, function, delta=_delta_of(function))


def _delta_of(function: Any) -> Callable[[Any, Any], tuple[Reducer, Any]] | None:
    own: Any = getattr(function, "delta", None)
    if own is None:
        return None

    def delta(old: Any, update: Any) -> tuple[Reducer, Any]:
        using, given = own(old, update)
        reducer = builtin_reducer(using)
        if reducer is None:
            raise TypeError("delta returns a pair: a built-in reducer and its update")
        if reducer.empty is not None and type(old) is not reducer.empty:
            raise TypeError(f"delta names '{reducer.name}', but the value is {type(old).__name__}")
        return reducer, given

    return delta


class Initial(msgspec.Struct, frozen=True):
    factory: Callable[[], Any]


class FormerNames(msgspec.Struct, frozen=True):
    names: tuple[str, ...]


class Inbox(msgspec.Struct, frozen=True):
    """The topic for a channel, in its annotation. See ``inbox``."""

    topic: str


def inbox(topic: str) -> object:
    """Let a state key get a topic's messages, as they come.

    With ``Annotated[list[str], append, inbox("user")]`` each step ends with the values
    sent to the topic since the last one, before its edges are evaluated. A message that comes as
    the run ends, or later, starts the next one. The reducer is given a list with one value each.
    """
    check_topic(topic)
    return Inbox(topic)


def renamed_from(*names: str) -> object:
    """A state key's former names, in its annotation.

    With ``Annotated[str, renamed_from("title")]`` threads saved under a former name get
    the new one when they are resumed.
    """
    if not names or {type(name) for name in names} != {str}:
        raise TypeError("renamed_from takes the former names of the key")
    return FormerNames(names)


def initial(factory: Callable[[], Any]) -> object:
    """Give a TypedDict key a start value.

    With ``Annotated[int, add, initial(int)]`` the reducer also sees the first update. Other kinds
    of states have defaults instead.
    """
    if not callable(factory):
        raise TypeError(f"initial takes a function, not {type(factory).__name__}: initial(list)")
    return Initial(factory)
