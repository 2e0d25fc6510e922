"""Threads' tags: those a call adds, and later changes.

A call adds its tags with the commit that starts or resumes its run. A later change is a batch with
tags alone, at the head: a run in progress does not notice it. If the run moved the head meanwhile,
it is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from milecastle.errors import Conflict, InvalidRequest, ThreadNotFound
from milecastle.model.keys import ThreadKey
from milecastle.model.tags import TagChange, refuse_too_many
from milecastle.ports.reading import StoreReader
from milecastle.ports.store import Batch, Store
from milecastle.ports.tags import Tags

_ATTEMPTS: Final = 1000


def require_tags(store: StoreReader | None) -> Tags:
    if store is None or store.tags is None:
        raise InvalidRequest("tags need a store that has them: compile(store='sqlite:///runs.db')")
    return store.tags


def tags_at(store: StoreReader, key: ThreadKey) -> tuple[str, ...]:
    if store.tags is None:
        return ()
    return store.tags.of(key.tenant, [key.thread]).get(key.thread, ())


def added_tags(store: Store | None, key: ThreadKey, tags: Iterable[str]) -> TagChange:
    known = require_tags(store).of(key.tenant, [key.thread]).get(key.thread, ())
    change = TagChange(add=tuple(tags))
    _refuse_growth(known, change.applied(known))
    return change


def change_tags(store: Store, key: ThreadKey, change: TagChange) -> tuple[str, ...]:
    """Change a thread's tags, which must exist; return those it has then.

    Two callers changing them at the same moment may together exceed a thread's
    maximum of tags. Then it can lose tags, and no longer get any.
    """
    require_tags(store)
    attempts = 0
    while True:
        head = store.head(key)
        if head is None or store.thread(key) is None:
            raise ThreadNotFound(tenant=key.tenant, thread=key.thread)
        tags = tags_at(store, key)
        changed = change.applied(tags)
        if changed == tags:
            return tags
        _refuse_growth(tags, changed)
        try:
            store.commit(Batch(key=key, head=head.seq, head_id=head.id, tags=change))
            return tags_at(store, key)  # others may have changed them meanwhile
        except Conflict:  # its run committed a step
            attempts += 1
            if attempts >= _ATTEMPTS:
                raise


def _refuse_growth(tags: tuple[str, ...], changed: tuple[str, ...]) -> None:
    if len(changed) > len(tags):
        refuse_too_many(changed)
