"""Every store that is broken on purpose. The contract must catch each of them."""

from __future__ import annotations

from tests.broken_stores import (
    followings,
    lists,
    reads,
    recency,
    removals,
    results,
    tags,
    writes,
)
from tests.broken_stores.store import BrokenStore

__all__ = ["BROKEN_STORES", "BrokenStore"]

_PARTS = (
    writes,
    reads,
    results,
    lists,
    recency,
    followings,
    tags,
    removals,
)

BROKEN_STORES: tuple[type[BrokenStore], ...] = tuple(
    store for store in BrokenStore.known if store.__module__ in {part.__name__ for part in _PARTS}
)
"""One for each way to break the contract; each says which clauses catch it."""
