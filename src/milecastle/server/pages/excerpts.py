"""A page's values, each and together with a size limit.

Every stored value and every long text a page shows passes through ``Excerpts.hidden``, ``json`` or
``text``: there a hook may hide it. A value that does not fit is cut, and the excerpt says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from markupsafe import escape

from milecastle.server.pages.json_tree import Tree, flat_facts, json_tree
from milecastle.support.printable import printable
from milecastle.views.values import anything, as_json, plain

Hiding = Callable[[str, Any], Any]
"""Gets the place of a value and its JSON, and returns what is shown in its place."""

_NAME: Final = 80
_ITEM: Final = 3
"""The least that an item of a list takes on its own line."""


class Excerpt(msgspec.Struct, frozen=True):
    text: str
    is_cut: bool


class Excerpts:
    def __init__(self, left: int, redact: Hiding | None = None) -> None:
        self.left = left
        self._redact = redact

    def hidden(self, place: str, value: Any) -> Any:
        """The value as the hook leaves it, to be ``shown`` with others."""
        return value if self._redact is None else self._redact(place, plain(value))

    def json(self, place: str, value: Any, most: int) -> Excerpt:
        return self.shown(self.hidden(place, value), most)

    def shown(self, value: Any, most: int) -> Excerpt:
        room = _Room(min(most, self.left))
        text = as_json(_clipped(value, room), indent=2)
        return self._taken(text, most, is_cut=room.is_full)

    def tree(
        self,
        members: Iterable[tuple[str, Any, str]],
        most: int,
        *,
        was: Mapping[str, str] | None = None,
        more: str = "",
    ) -> Tree:
        found = json_tree(members, max(0, min(most, self.left)), was=was, more=more)
        self.left -= found.size
        return found

    def facts(self, value: Any, most: int) -> list[tuple[str, str]] | None:
        """A small flat object's members that passed the hook; ``None`` for other values."""
        found = flat_facts(value, most)
        self.left -= sum(len(name) + len(text) + 40 for name, text in found or ())
        return found

    def text(self, place: str, value: str, most: int) -> Excerpt:
        if self._redact is not None:
            value = str(self._redact(place, value))
        lines = value[:most].split("\n")
        return self._taken("\n".join(map(printable, lines)), most, is_cut=len(value) > most)

    def _taken(self, text: str, most: int, *, is_cut: bool) -> Excerpt:
        most = max(0, min(most, self.left))
        short, size = text[:most], _size(text[:most])
        while size > most:
            short = short[: len(short) * most // size]
            size = _size(short)
        self.left -= size
        return Excerpt(short, is_cut or len(short) < len(text))


def short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def _size(text: str) -> int:
    return len(escape(text).encode("utf-8", "surrogatepass"))


class _Room:
    def __init__(self, left: int) -> None:
        self.left = left
        self.is_full = False

    def has(self) -> bool:
        self.is_full = self.is_full or self.left <= 0
        return not self.is_full


def _clipped(value: Any, room: _Room) -> Any:
    """A value's first parts that fit: a large one is never copied in full."""
    if isinstance(value, str):
        found = value[: max(0, room.left)]
        room.is_full = room.is_full or len(found) < len(value)
        room.left -= len(value) + _ITEM
        return found
    if isinstance(value, Mapping):
        return dict(_members(anything(value), room))
    if isinstance(value, list | tuple):
        return list(_items(anything(value), room))
    room.left -= _ITEM
    return plain(value)


def _members(value: Mapping[Any, Any], room: _Room) -> Iterator[tuple[Any, Any]]:
    for key, member in value.items():
        if not room.has():
            return
        room.left -= len(key) if isinstance(key, str) else 1
        yield key, _clipped(member, room)


def _items(value: list[Any], room: _Room) -> Iterator[Any]:
    for item in value:
        if not room.has():
            return
        yield _clipped(item, room)
