"""The archive: a thread's old entries, in object storage.

An archived entry is in no table, and is read like any other: ``Store.read``, ``history``,
``entries`` and ``locate`` find it. Only the head, results, runs and the index row always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey


class Archive(Protocol):
    """Moves entries to object storage and back. Thread-safe; sync."""

    def oldest(self, key: ThreadKey) -> Entry | None:
        """The oldest entry that is not archived; ``None`` if there is no thread."""
        ...

    def put(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Callable[[int], Sequence[Entry]],
        is_over: bool = False,
    ) -> int:
        """Move entries below ``cut``, oldest first; return how many: 0 if none is left.

        ``head`` and ``cut`` are those of ``Store.prune``, and so are the errors; ``rewritten``
        returns the snapshots that it needs for a cut, which is lower if one call cannot move all.
        The entries leave the store after they were written to object storage and read back, in the
        transaction that compares the head. With ``is_over``, large values of the entry at the cut
        are moved as well.
        """
        ...

    def restore(self, key: ThreadKey, *, head: int) -> int:
        """Move all archived entries back; return how many."""
        ...
