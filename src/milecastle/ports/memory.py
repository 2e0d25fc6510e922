"""Long-term memory: a tenant's items, written by its threads' commits.

Rules for every store with this port, checked by ``milecastle.testing.MemoryContract``:

1. An item is found under the prefixes of its path and under no others, whatever its labels: paths
   and keys are compared byte by byte. Paths have up to 1,536 bytes.
2. Tenants are apart in every call: no item or word of another tenant is read, counted or
   ranked.
3. ``Batch.memory`` is written with its batch, or not at all. A refused batch leaves nothing, also
   in a group.
4. ``version`` counts the writes of an item, from 1. ``if_version`` is compared in the transaction
   that writes: ``MemoryChanged`` if it is another, and then nothing of the batch, or of the call,
   is written. Of writers who expect the same version one succeeds. A deletion compares it too.
   Writers of the same items in other orders wait for each other, and are not refused.
5. An item whose time is over, by the store's clock, is in no answer, whether it was swept or not.
   Put again, it has the version 1. Reading extends nothing; ``touch`` does.
6. ``sweep`` removes items whose time is over when they are removed: one that was put again stays.
7. A limit applies after tenant, prefix and time.
8. Replaced and deleted items leave no words.
9. ``erase`` removes every item of a subject, with its words and vectors.
10. Deleting, pruning and forking threads change no item.

A batch has at most one write for each place, and comes with an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from milecastle.model.memory import ItemPlace, MemoryWrite, StoredItem


class MemoryItems(Protocol):
    """A store's items, by tenant, path and key."""

    def get(self, tenant: str, path: bytes, key: str) -> StoredItem | None:
        """An item, or ``None``."""
        ...

    def scan(
        self, tenant: str, under: bytes, *, after: ItemPlace | None = None, limit: int
    ) -> Sequence[StoredItem]:
        """Items under a prefix, by path and key, from above ``after``."""
        ...

    def paths(
        self, tenant: str, under: bytes, *, after: bytes = b"", limit: int
    ) -> Sequence[bytes]:
        """Paths that have items, in order, from above ``after``."""
        ...

    def with_words(
        self, tenant: str, under: bytes, words: Sequence[str], *, limit: int
    ) -> Sequence[StoredItem]:
        """Items with some of these words, those with most first; then by path and key."""
        ...

    def write(self, tenant: str, writes: Sequence[MemoryWrite]) -> None:
        """Write items in their own transaction; at most one for each place."""
        ...

    def touch(self, tenant: str, places: Sequence[ItemPlace]) -> None:
        """Restart the expiry time, for items that have one."""
        ...

    def erase(self, tenant: str, subject: str) -> int:
        """Remove a subject's items; return how many there were."""
        ...

    def sweep(self, tenant: str, *, limit: int) -> int:
        """Remove some items whose time is over; return how many."""
        ...
