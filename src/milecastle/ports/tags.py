"""Tags: threads by the names users give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from milecastle.model.run import ThreadInfo


class Tags(Protocol):
    """Reads of tags. A store without them ignores ``Batch.tags``."""

    def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """These threads' tags, by code point; a thread without any is missing."""
        ...

    def threads(
        self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads with a tag, by thread id, from above ``after``.

        One indexed query, if the store has indexes: a page costs as much as its size.
        """
        ...
