"""Tags: short texts for listing threads. They belong to the thread, not to a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.keys import check_name

MAX_TAG_BYTES: Final = 128
MAX_TAGS: Final = 32
"""How many a thread may have."""


class TagChange(msgspec.Struct, frozen=True, gc=False):
    """The tags a thread gets and loses; no tag is in both.

    Both are sets in effect: a tag that is there already, or is not there, makes no difference. So
    the order between two changes with different tags makes none either, and no writer loses one.
    """

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    @classmethod
    def of(cls, add: Iterable[str] = (), remove: Iterable[str] = ()) -> TagChange:
        change = cls(read_tags(add), read_tags(remove))
        if set(change.add) & set(change.remove):
            raise InvalidRequest("a tag cannot be added and removed by one call")
        return change

    def applied(self, tags: Iterable[str]) -> tuple[str, ...]:
        """Tags after the change, by code point."""
        return tuple(sorted({*tags, *self.add}.difference(self.remove)))


def read_tags(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(cast("object", given), Iterable):
        raise InvalidRequest("tags are a list of str: tags=['invoice', 'eu']")
    tags = set[str]()
    for tag in given:
        check_name("tag", tag, MAX_TAG_BYTES)
        tags.add(tag)
    refuse_too_many(tags)
    return tuple(sorted(tags))


def refuse_too_many(tags: Iterable[str]) -> None:
    count = len(set(tags))
    if count > MAX_TAGS:
        raise InvalidRequest(f"a thread may have at most {MAX_TAGS} tags, not {count}")
