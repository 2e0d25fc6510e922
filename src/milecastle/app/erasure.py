"""Erasure: threads go whole, whatever their state, and a report says which.

The key of an encrypted thread goes first: then no copy of it can be read, whatever happens next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from milecastle.app.children import delete_with_children
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.keyring import Keyring

__all__ = ["ErasureReport", "erase_threads"]


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which threads of a tenant were erased, which were not there, and when it was done.

    ``erased_at`` is in microseconds since 1970.
    """

    tenant: str
    erased: tuple[str, ...]
    missing: tuple[str, ...]
    erased_at: int


def erase_threads(
    store: Store,
    tenant: str,
    threads: Iterable[str],
    *,
    now: int,
    encryption: Keyring | None = None,
) -> ErasureReport:
    """Delete threads with everything of them; a writer that still runs is refused from then on."""
    found: dict[str, bool] = {}
    for thread in dict.fromkeys(threads):
        key = ThreadKey(tenant, thread)
        had_key = encryption is not None and encryption.erase(key)
        found[thread] = delete_with_children(store, key) or had_key
    return ErasureReport(
        tenant=tenant,
        erased=tuple(thread for thread, was_there in found.items() if was_there),
        missing=tuple(thread for thread, was_there in found.items() if not was_there),
        erased_at=now,
    )
