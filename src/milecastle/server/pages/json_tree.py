"""Values as a tree of ``<details>``, with only the first members of each object and list.

Every text is escaped here: for lines by ``as_json`` or ``printable``, then for HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from markupsafe import Markup, escape

from milecastle.support.printable import printable
from milecastle.views.values import anything, as_json, plain

_ITEMS: Final = 8
_MEMBERS: Final = 60
_DEEP: Final = 20
_LONG: Final = 2000
_LINE: Final = 60
"""Items of a list and members of an object that are shown, levels, and characters of a text."""


class Tree(msgspec.Struct, frozen=True):
    """``is_cut`` if its room was too small, or a value is longer than its shown part."""

    html: Markup
    size: int
    is_cut: bool


def json_tree(
    members: Iterable[tuple[str, Any, str]],
    room: int,
    *,
    was: Mapping[str, str] | None = None,
    more: str = "",
) -> Tree:
    """Values with their names and paths. ``was`` gives the change at a path.

    ``more`` is where a list has its other items.
    """
    drawing = _Drawing(room, was or {}, more)
    drawing.add("<ul>")
    for name, value, path in members:
        if drawing.is_full:
            break
        drawing.member(name, value, path, 0)
    drawing.add("</ul>")
    html = "".join(drawing.parts)
    return Tree(Markup(html), len(html.encode()), drawing.is_cut)  # noqa: S704 (all is escaped)


class _Drawing:
    def __init__(self, left: int, was: Mapping[str, str], more: str) -> None:
        self.parts: list[str] = []
        self.is_cut = False
        self._left = left
        self._was = was
        self._more = escape(more)
        self._changed = {prefix for path in was for prefix in _prefixes(path)}

    @property
    def is_full(self) -> bool:
        self.is_cut = self.is_cut or self._left <= 0
        return self._left <= 0

    def add(self, html: str) -> None:
        self.parts.append(html)
        self._left -= len(html)

    def member(self, name: str, value: Any, path: str, depth: int) -> None:
        was = self._was.get(path)
        self.add('<li class="new">' if was is not None else "<li>")
        key = f'<span class="k">{_text(name)}</span>'
        is_nested = isinstance(value, Mapping | list | tuple)
        found: Any = anything(value) if is_nested else plain(value)
        if isinstance(found, Mapping | list | tuple) and found:
            self._nested(key, anything(found), path, depth)
        else:
            self.add(f"{key}{self._scalar(found)}")
        if was is not None:
            self.add(f'<span class="was">{_text(was)}</span>')
        self.add("</li>")

    def _nested(self, key: str, value: Any, path: str, depth: int) -> None:
        is_object = isinstance(value, Mapping)
        count = len(value)
        what = ("key" if is_object else "item") + ("" if count == 1 else "s")
        is_open = depth == 0 or path in self._changed
        summary = f'<summary>{key}<span class="is">{count:,} {what}</span></summary>'
        self.add(f"<details{' open' if is_open else ''}>{summary}<ul>")
        shown = 0
        most = _MEMBERS if is_object else _ITEMS
        if depth < _DEEP:
            members: Any = anything(value).items() if is_object else enumerate(anything(value))
            pairs: Iterable[tuple[Any, Any]] = members
            for one in islice(pairs, most):
                if self.is_full:
                    break
                name = one[0] if isinstance(one[0], str) else repr(plain(one[0]))
                step = f".{name}" if is_object and isinstance(one[0], str) else f"[{name}]"
                self.member(name, one[1], path + step, depth + 1)
                shown += 1
        if shown < count:
            self.is_cut = self.is_cut or is_object
            said = f"{count - shown:,} more"
            self.add(f'<li><a class="is" href="{self._more}">{said}</a></li>')
        self.add("</ul></details>")

    def _scalar(self, value: Any) -> str:
        if isinstance(value, str):
            text = as_json(value[: max(0, min(_LONG, self._left))])
            self.is_cut = self.is_cut or len(value) > _LONG
            kind = "str s" if len(text) <= _LINE else "str"
            return f'<span class="{kind}">{escape(text)}</span>'
        if isinstance(value, bool) or value is None:
            return f'<span class="lit">{as_json(value)}</span>'
        if isinstance(value, int | float):
            return f'<span class="num">{escape(as_json(value)[:_LONG])}</span>'
        empty = "{}" if isinstance(value, Mapping) else "[]"
        return f'<span class="is">{empty}</span>'


def _text(name: str) -> Markup:
    return escape(printable(name[:_LONG]))


def _prefixes(path: str) -> Iterable[str]:
    for at, char in enumerate(path):
        if char in ".[":
            yield path[:at]
    yield path


def flat_facts(value: Any, most: int) -> list[tuple[str, str]] | None:
    """A flat object's short values as names and texts; ``None`` if it has more than ``most``."""
    if not isinstance(value, Mapping) or not 0 < len(anything(value)) <= most:
        return None
    found: list[tuple[str, str]] = []
    for name, member in anything(value).items():
        one = plain(member)
        if not isinstance(name, str) or not isinstance(one, str | int | float | bool):
            return None
        text = one if isinstance(one, str) else as_json(one)
        if len(text) > _LINE or "\n" in text:
            return None
        found.append((name, {"true": "yes", "false": "no"}.get(text, text)))
    return found
