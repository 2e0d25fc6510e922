"""Deletion of whole threads, with subgraphs and keys: a stopped one, or by erasure.

Deletion is at the head read before: a thread written to meanwhile stays. The key of an
encrypted thread is deleted after the thread, and only if no thread with that name has started since
(``Keyring.eraser``).

Erasure deletes threads whatever their state, and reports which. Their keys are deleted first: then
no copy can be read, whatever happens next. Their data in a workspace is deleted too, if it is given
or is a file store's folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from milecastle.app.runs.ownership import refuse_busy
from milecastle.app.threads.children import delete_with_children
from milecastle.model.keys import ThreadKey
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.encryption.keyring import Keyring
    from milecastle.builds.workspace import Workspace


def delete_thread(
    store: Store,
    key: ThreadKey,
    encryption: Keyring | None,
    *,
    take_over: bool,
    run_id: str | None = None,
) -> bool:
    """Delete a thread as it is now, with its subgraphs and its key; return whether it existed.

    With ``run_id``, only if that run wrote its head; otherwise ``False``, and it stays. With
    ``take_over``, whatever happens to it meanwhile, and with the inputs waiting.

    Raises:
        RunInProgress: a live process drives it, or inputs wait, and ``take_over`` was not given.
        Conflict: it was written to meanwhile.
    """
    head = store.head(key)
    if run_id is not None and (head is None or head.run_id != run_id):
        return False
    if take_over:
        return remove_thread(store, key, encryption)
    seq = head.seq if head else 0
    ids = [head.run_id if head else "", *(one.mark for one in waiting_inputs(store, key, 1))]
    for record in (store.run(key, id) for id in ids):
        if record is not None:
            refuse_busy(store, record, seq)
    return remove_thread(store, key, encryption, seq, head.id if head else None)


def remove_thread(
    store: Store,
    key: ThreadKey,
    encryption: Keyring | None,
    head: int | None = None,
    head_id: str | None = None,
) -> bool:
    """Remove a thread, then its subgraphs and its key.

    With ``head``, only if that is its head and no input waits; otherwise ``Conflict``. The seq
    alone is not enough: a thread deleted and created again may have the same one.
    """
    erase = encryption.eraser(key) if encryption else None
    if not delete_with_children(store, key, head=head, head_id=head_id):
        return False
    if erase:
        erase()
    return True


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which threads of a tenant were erased, which did not exist, and when.

    ``erased_at`` is in microseconds since 1970. ``cached`` is the number of their results deleted
    from a workspace's cache.
    """

    tenant: str
    erased: tuple[str, ...]
    missing: tuple[str, ...]
    erased_at: int
    cached: int = 0


def erase_threads(
    store: Store,
    tenant: str,
    threads: Iterable[str],
    *,
    now: int,
    encryption: Keyring | None = None,
    workspace: Workspace | None = None,
) -> ErasureReport:
    """Delete threads and all their data; an active writer is refused from then on."""
    found: dict[str, bool] = {}
    for thread in dict.fromkeys(threads):
        key = ThreadKey(tenant, thread)
        had_key = encryption is not None and encryption.erase(key)
        found[thread] = delete_with_children(store, key) or had_key
    cached = 0
    place = workspace or _workspace_of(store)
    if place is not None:
        from milecastle.builds.upkeep import erase_from_workspace

        gone = erase_from_workspace(place, tenant, found)
        found |= dict.fromkeys(gone.threads & found.keys(), True)
        cached = gone.entries
    return ErasureReport(
        tenant=tenant,
        erased=tuple(thread for thread, was_there in found.items() if was_there),
        missing=tuple(thread for thread, was_there in found.items() if not was_there),
        erased_at=now,
        cached=cached,
    )


def _workspace_of(store: Store) -> Workspace | None:
    root = getattr(store, "root", None)
    if root is None or not (root / "cache").is_dir():
        return None
    from milecastle.builds.workspace import Workspace

    return Workspace(root)
