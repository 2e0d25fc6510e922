"""Every store that is broken on purpose. The contract must catch each of them."""

from __future__ import annotations

from milecastle.testing import (
    broken_followings,
    broken_lists,
    broken_reads,
    broken_removals,
    broken_results,
    broken_writes,
)
from milecastle.testing.broken_store import BrokenStore

__all__ = ["BROKEN_STORES", "BrokenStore"]

_PARTS = (
    broken_writes,
    broken_reads,
    broken_results,
    broken_lists,
    broken_followings,
    broken_removals,
)

BROKEN_STORES: tuple[type[BrokenStore], ...] = tuple(
    store for store in BrokenStore.known if store.__module__ in {part.__name__ for part in _PARTS}
)
"""One for each way to break the contract; each says which clauses catch it."""
