"""Erasure: threads go whole, whatever their state, and a report says which."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store

__all__ = ["ErasureReport", "erase_threads"]


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which threads of a tenant were erased, which were not there, and when it was done.

    ``erased_at`` is in microseconds since 1970.
    """

    tenant: str
    erased: tuple[str, ...]
    missing: tuple[str, ...]
    erased_at: int


def erase_threads(store: Store, tenant: str, threads: Iterable[str], *, now: int) -> ErasureReport:
    """Delete threads with everything of them; a writer that still runs is refused from then on."""
    keys = [ThreadKey(tenant, thread) for thread in dict.fromkeys(threads)]
    found = {key.thread: store.delete(key) for key in keys}
    return ErasureReport(
        tenant=tenant,
        erased=tuple(thread for thread, was_there in found.items() if was_there),
        missing=tuple(thread for thread, was_there in found.items() if not was_there),
        erased_at=now,
    )
