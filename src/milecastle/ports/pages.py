from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Generic, TypeVar

import msgspec

from milecastle.errors import InvalidRequest

T = TypeVar("T")

PageKey = tuple[int, str, int]
"""Where an item is in a list: a number, a thread id, and the number of a run or 0."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Part of a list. ``after``, given to the same call, continues behind the last one.

    It is ``None`` if the page is not full: nothing is left. Its format is the store's business.
    """

    items: tuple[T, ...] = ()
    after: str | None = None

    @classmethod
    def cut(cls, items: Iterable[T], limit: int | None, place: Callable[[], PageKey]) -> Page[T]:
        """A page of these items, perhaps cut at ``limit`` after ``place``."""
        found = tuple(items)
        is_full = bool(found) and len(found) == limit
        return cls(found, place_text(place()) if is_full else None)


def place_text(place: PageKey) -> str:
    """A place as in ``Page.after``."""
    return msgspec.json.encode(place).decode()


def place_after(text: str) -> PageKey:
    """The inverse of ``place_text``; ``InvalidRequest`` if malformed."""
    try:
        return msgspec.json.decode(text, type=tuple[int, str, int])
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidRequest("after= is not the `after` of a page of this list") from None


def page_of(
    found: Iterable[tuple[PageKey, T]], limit: int | None, after: str | None, *, down: bool
) -> Page[T]:
    """A page from unordered items: by place, descending or ascending."""
    placed = sorted(found, key=itemgetter(0), reverse=down)
    if after is not None:
        last = place_after(after)
        placed = [one for one in placed if (one[0] < last if down else one[0] > last)]
    page = placed if limit is None else placed[: max(0, limit)]
    return Page[T].cut((item for _, item in page), limit, lambda: page[-1][0])
