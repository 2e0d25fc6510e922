"""Messages: lists whose items have an id, updated by id.

Rules:

- Items are taken in order. An id the list has is replaced in place, a new one is appended,
  ``Remove(id)`` deletes; removing a missing one is no error.
- An item without an id gets one before the update is stored or compared, so nothing read
  from a log ever gets another. The given item is not changed: it is copied.
- The log stores the change by position (``edit``, or ``append``), so reading it needs no ids: they
  may be in user objects the reader does not know.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated, Any, Final, TypedDict, cast

import msgspec

from milecastle.model.ids import IdMaker
from milecastle.model.reducers import APPEND, EDIT, LAST, Reducer, edit
from milecastle.model.removal import REMOVE_ALL, Remove

_MISSING: Final = object()
_new_id: Final = IdMaker().make


class Upsert:
    """A reducer for lists of items with ids. See ``upsert``."""

    def __init__(self, name: str, by: str, *, mint: bool) -> None:
        self._by = by
        self._mint = mint
        self.reducer: Final = Reducer(name, self, EDIT.code, list, self.delta, self.prepare)

    def __call__(self, old: list[Any], update: Any) -> list[Any]:
        reducer, given = self.delta(old, update)
        return cast("list[Any]", reducer.function(old, given))

    def prepare(self, update: Any) -> Any:
        if not self._mint or not isinstance(update, list | tuple):
            return update
        items = cast("list[Any]", update)
        return [self._with_id(item) if self._id_of(item) is None else item for item in items]

    def delta(self, old: list[Any], update: Any) -> tuple[Reducer, Any]:
        if not isinstance(update, list | tuple):
            kind = type(update).__name__
            raise TypeError(f"{self.reducer.name} takes a list of items, not {kind}: wrap it in []")
        base = list(old)
        is_kept = type(old) is list
        by, id_of = self._by, self._id_of
        places = {  # long conversations are dicts: a call for each of their messages takes time
            item.get(by) if item.__class__ is dict else id_of(item): at
            for at, item in enumerate(base)
        }
        changes: dict[int, list[Any]] = {}
        tail: dict[Any, Any] = {}
        for item in self.prepare(update):
            id = self._needed_id(item)
            if _is_removal(item):
                if id == REMOVE_ALL.id:
                    base, is_kept, places, changes, tail = [], False, {}, {}, {}
                elif tail.pop(id, _MISSING) is _MISSING and id in places:
                    changes[places.pop(id)] = []
            elif id not in places:
                tail[id] = item
            elif not is_same(base[places[id]], item):
                changes[places[id]] = [item]
            else:
                changes.pop(places[id], None)
        made = [len(base), [[at, *changes[at]] for at in sorted(changes)], [*tail.values()]]
        if not is_kept:
            return LAST, edit(base, made)
        return (EDIT, made) if changes else (APPEND, made[2])

    def added(self, old: list[Any], new: list[Any]) -> list[Any]:
        items: list[Any] = self.prepare(new)
        known = {self._id_of(item): item for item in old}
        ids = {self._id_of(item) for item in items}
        update = [Remove(id) for id in known if id not in ids]
        update += [i for i in items if not is_same(known.get(self._id_of(i), _MISSING), i)]
        return update if is_same(self(old, update), items) else [REMOVE_ALL, *items]

    def _id_of(self, item: Any) -> Any:
        if isinstance(item, Remove):
            return item.id
        if isinstance(item, dict):
            return cast("dict[str, Any]", item).get(self._by)
        return getattr(item, self._by, None)

    def _needed_id(self, item: Any) -> Any:
        id = self._id_of(item)
        if id is None:
            raise TypeError(f"an item of type {type(item).__name__} has no '{self._by}'")
        return id

    def _with_id(self, item: Any) -> Any:
        if isinstance(item, dict):
            return {**cast("dict[str, Any]", item), self._by: _new_id()}
        if isinstance(item, Remove) or not hasattr(item, self._by):
            return item
        if hasattr(item, "model_copy"):
            return item.model_copy(update={self._by: _new_id()})
        if isinstance(item, msgspec.Struct):
            return msgspec.structs.replace(item, **{self._by: _new_id()})
        made = copy.copy(item)
        object.__setattr__(made, self._by, _new_id())
        return made


def _is_removal(item: Any) -> bool:
    return isinstance(item, Remove) or (
        type(item).__name__ == "RemoveMessage" and getattr(item, "type", None) == "remove"
    )


def is_same(old: Any, new: Any) -> bool:
    """True if a value is unchanged; one read back from a store is another object."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    kind = cast("object", type(old))
    if kind is list or kind is tuple:
        return len(old) == len(new) and all(map(is_same, old, new))
    if kind is dict:
        return old.keys() == new.keys() and all(is_same(old[name], new[name]) for name in old)
    try:
        return bool(old == new)
    except Exception:  # values with their own equality, such as arrays
        return False


def upsert(by: str = "id", *, mint: bool = True) -> Callable[[list[Any], Any], list[Any]]:
    """A reducer for a list of items (dicts or objects) that are identified by ``by``.

    An update is a list of items. The same id replaces in place, new ids are appended,
    ``Remove(id)`` and ``REMOVE_ALL`` delete. An item whose id is missing or ``None`` gets a new
    one; with ``mint=False`` it is refused.
    """
    return Upsert(f"upsert {by}", by, mint=mint)


messages: Final = Upsert("messages", "id", mint=True)
"""The reducer for chat messages: ``upsert(by="id")`` under its own name."""


class MessagesState(TypedDict):
    """A state with ``messages``: dicts, dataclasses, pydantic models or LangChain's classes.

    Inherit from it to add keys.
    """

    # pyright takes the reducer for the key of that name.
    messages: Annotated[list[Any], messages]  # pyright: ignore[reportGeneralTypeIssues]
