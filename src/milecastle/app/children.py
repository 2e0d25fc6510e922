"""The threads of subgraphs: addressed under the thread, the step and the task of their parent.

The place of the step begins with the seq at which it began, so that a fork of the parent never
meets the child of another branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from milecastle.errors import Conflict, InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Store

__all__ = [
    "child_key",
    "children_of",
    "delete_with_children",
    "is_child",
    "own_threads",
    "refuse_mark",
    "root_of",
]

_MARK: Final = "\x1f"
_LAST: Final = "\U0010ffff"
_PAGE: Final = 200


def child_key(parent: ThreadKey, place: str, task: str) -> ThreadKey:
    """The thread of the subgraph that a task of a step runs."""
    return ThreadKey(parent.tenant, f"{parent.thread}{_MARK}{place}{_MARK}{task}")


def is_child(key: ThreadKey) -> bool:
    """Whether this is the thread of a subgraph."""
    return _MARK in key.thread


def root_of(key: ThreadKey) -> ThreadKey:
    """The thread that a person began: the key itself, unless it is that of a subgraph."""
    return ThreadKey(key.tenant, key.thread.partition(_MARK)[0]) if is_child(key) else key


def refuse_mark(thread: str) -> None:
    """Threads of people do not have the mark in their names."""
    if _MARK in thread:
        raise InvalidRequest("a thread's name cannot hold U+001F: it stands before subgraphs")


def children_of(store: Store, key: ThreadKey) -> Iterator[ThreadInfo]:
    """The threads of the subgraphs of a thread, and of theirs."""
    prefix = after = f"{key.thread}{_MARK}"
    while page := store.threads(key.tenant, limit=_PAGE, after=after):
        for found in page:
            if not found.key.thread.startswith(prefix):
                return
            yield found
        after = page[-1].key.thread


def delete_with_children(store: Store, key: ThreadKey, *, head: int | None = None) -> bool:
    """Remove a thread and those of its subgraphs.

    With ``head``, only if that is still its head; otherwise ``Conflict``, and all stay. Then those
    of its subgraphs stay that are written to meanwhile: a thread of this name began anew.
    """
    if head is None:
        was_there = store.delete(key)
        for child in list(children_of(store, key)):
            store.delete(child.key)
        return was_there
    heads = {child.key: _head(store, child.key) for child in children_of(store, key)}
    was_there = store.delete(key, head=head)
    for child_key, seen in heads.items():
        with suppress(Conflict):
            store.delete(child_key, head=seen)
    return was_there


def _head(store: Store, key: ThreadKey) -> int:
    return next((entry.seq for entry in store.history(key, limit=1)), 0)


def own_threads(
    store: Store,
    tenant: str,
    *,
    status: RunStatus | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> Iterator[ThreadInfo]:
    """A tenant's threads without those of subgraphs, by thread id."""
    left = limit
    while left is None or left > 0:
        page = store.threads(tenant, status=status, limit=_PAGE, after=after)
        for found in page:
            after = found.key.thread
            if is_child(found.key):
                after = f"{after.partition(_MARK)[0]}{_MARK}{_LAST}"
                break
            yield found
            left = None if left is None else left - 1
            if left == 0:
                return
        else:
            if len(page) < _PAGE:
                return
