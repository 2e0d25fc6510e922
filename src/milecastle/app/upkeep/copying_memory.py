"""Copying long-term memory from one store to another: values and their index byte for byte.

Nothing in the target is overwritten. Versions start again at 1, and each ``ttl`` starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from milecastle.app.memory import require_memory
from milecastle.errors import MemoryChanged
from milecastle.model.memory import ItemPlace, MemoryWrite, StoredItem
from milecastle.ports.memory import MemoryItems
from milecastle.ports.store import Store

_PAGE: Final = 100


def copy_memory(source: Store, target: Store, tenant: str) -> int:
    here, there = require_memory(source), require_memory(target)
    copied = 0
    after: ItemPlace | None = None
    while page := here.scan(tenant, b"", after=after, limit=_PAGE):
        after = page[-1].place
        copied += _copy_items(there, tenant, page)
    return copied


def _copy_items(target: MemoryItems, tenant: str, items: Sequence[StoredItem]) -> int:
    try:
        target.write(tenant, [_write_of(item) for item in items])
    except MemoryChanged:
        if len(items) == 1:
            return 0
        return sum(_copy_items(target, tenant, [item]) for item in items)
    return len(items)


def _write_of(item: StoredItem) -> MemoryWrite:
    return MemoryWrite(
        path=item.path,
        key=item.key,
        value=item.value,
        subject=item.subject,
        words=item.words,
        vectors=item.vectors,
        model=item.model,
        ttl=item.ttl,
        if_version=0,
    )
