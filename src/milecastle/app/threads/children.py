"""The subgraph threads: named after the thread, the step and their parent's task.

The step's position starts with its first entry's id. So a fork of the parent
never finds another branch's child, and a thread never finds a deleted thread's child although
it has the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Final

from milecastle.app.threads.tagging import require_tags
from milecastle.engine.status import claimed
from milecastle.engine.tasks import task_id
from milecastle.errors import Conflict
from milecastle.model.keys import SUBGRAPH, ThreadKey
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.reading import FleetReader, StoreReader
from milecastle.ports.store import Store, offers

_LAST: Final = "\U0010ffff"
_PAGE: Final = 200


def child_key(parent: ThreadKey, place: str, task: str) -> ThreadKey:
    return ThreadKey(parent.tenant, f"{parent.thread}{SUBGRAPH}{place}{SUBGRAPH}{task}")


def children_at(
    store: Store, parent: ThreadKey, place: str, node: str
) -> Iterator[tuple[str, ThreadKey]]:
    for found in children_of(store, ThreadKey(parent.tenant, f"{parent.thread}{SUBGRAPH}{place}")):
        task = found.key.thread.removeprefix(f"{parent.thread}{SUBGRAPH}{place}{SUBGRAPH}")
        item = task.removeprefix(f"{task_id(node)}#")
        if task == task_id(node) or (item != task and item.isdigit()):
            yield task, found.key


def is_child(key: ThreadKey) -> bool:
    return SUBGRAPH in key.thread


def root_of(key: ThreadKey) -> ThreadKey:
    return ThreadKey(key.tenant, key.thread.partition(SUBGRAPH)[0]) if is_child(key) else key


def children_of(store: StoreReader, key: ThreadKey) -> Iterator[ThreadInfo]:
    prefix = f"{key.thread}{SUBGRAPH}"
    found = every_thread(store, key.tenant, after=prefix)
    return takewhile(lambda info: info.key.thread.startswith(prefix), found)


def delete_with_children(
    store: Store, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
) -> bool:
    if head is None:
        for child in reversed(list(children_of(store, key))):
            store.delete(child.key)
        was_there = store.delete(key)
        for child in list(children_of(store, key)):  # of a run that is refused from now on
            if _is_orphan(store, child.key):
                store.delete(child.key)
        return was_there
    heads = [(child.key, _head(store, child.key)) for child in children_of(store, key)]
    was_there = store.delete(key, head=head, head_id=head_id)
    for child_key, (seq, id) in reversed(heads):
        with suppress(Conflict):
            store.delete(child_key, head=seq, head_id=id)
    return was_there


def _head(store: Store, key: ThreadKey) -> tuple[int, str | None]:
    found = store.head(key)
    return (found.seq, found.id) if found else (0, None)


def _is_orphan(store: Store, key: ThreadKey) -> bool:
    parent, place, _ = key.thread.rsplit(SUBGRAPH, 2)
    return store.locate(ThreadKey(key.tenant, parent), place.partition(".")[0]) is None


def every_thread(
    store: StoreReader,
    tenant: str,
    *,
    status: RunStatus | None = None,
    tag: str | None = None,
    after: str | None = None,
    page: int = _PAGE,
) -> Iterator[ThreadInfo]:
    while found := _listed(store, tenant, status, tag, page, after):
        yield from (info for info in found if status in (None, info.status))
        after = found[-1].key.thread


def own_threads(
    store: StoreReader,
    tenant: str,
    *,
    status: RunStatus | None = None,
    tag: str | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> Iterator[ThreadInfo]:
    left = limit
    while left is None or left > 0:
        page = _listed(store, tenant, status, tag, _PAGE, after)
        for found in page:
            after = found.key.thread
            if is_child(found.key):
                after = f"{after.partition(SUBGRAPH)[0]}{SUBGRAPH}{_LAST}"
                break
            if status not in (None, found.status):
                continue
            yield found
            left = None if left is None else left - 1
            if left == 0:
                return
        else:
            if len(page) < _PAGE:
                return


def _listed(
    store: StoreReader,
    tenant: str,
    status: RunStatus | None,
    tag: str | None,
    limit: int,
    after: str | None,
) -> Sequence[ThreadInfo]:
    if tag is not None:
        found = require_tags(store).threads(tenant, tag, limit=limit, after=after)
    else:
        found = store.threads(tenant, status=status, limit=limit, after=after)
        if status == "running" and offers(store, FleetReader):
            return _with_claimed(store, tenant, found, limit, after)
    return [claimed(info) for info in found]


def _with_claimed(
    store: FleetReader, tenant: str, found: Sequence[ThreadInfo], limit: int, after: str | None
) -> Sequence[ThreadInfo]:
    keys = {key for worker in store.workers() for key in store.claimed(worker.id)}
    last = found[-1].key.thread if len(found) == limit else None
    listed = {info.key: info for info in found}
    for key in sorted(keys, key=lambda key: key.thread):
        if key.tenant != tenant or key in listed or (after is not None and key.thread <= after):
            continue
        if last is not None and key.thread > last:
            break
        info = store.thread(key)
        if info is not None and (taken := claimed(info)).status == "running":
            listed[key] = taken
            if len(listed) == len(found) + limit:
                break
    return sorted(listed.values(), key=lambda info: info.key.thread)[:limit]
