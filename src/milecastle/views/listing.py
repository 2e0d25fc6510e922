"""Threads as they are listed: by status, where running and lost are told apart, and by graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar, cast

import msgspec.structs

from milecastle.app.runtime.children import every_thread, own_threads
from milecastle.app.runtime.ownership import why_lost
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Store
from milecastle.views.documents import ThreadLine
from milecastle.views.lines import thread_line

__all__ = [
    "LOST",
    "InfoPage",
    "ThreadPage",
    "asking_page",
    "asking_threads",
    "found_page",
    "found_threads",
    "looked_at",
    "thread_lines",
    "thread_page",
]

T = TypeVar("T")

LOST: Final = "lost"
"""The status of a thread that is recorded as running, but not known to be."""


def thread_lines(
    store: Store,
    tenant: str,
    *,
    status: str | None = None,
    graph: str | None = None,
    prefix: str | None = None,
    after: str | None = None,
    subgraphs: bool = False,
) -> Iterator[ThreadLine]:
    """The threads of a tenant, by name, with this status, graph or beginning of the name."""
    for info in _candidates(store, tenant, status, prefix, after, subgraphs):
        line = _matching(store, info, status, graph)
        if line is not None:
            yield line


class ThreadPage(NamedTuple):
    """Some threads. ``next`` is the ``after`` of the next page, if threads are left to look at."""

    lines: tuple[ThreadLine, ...]
    next: str | None


def thread_page(
    store: Store,
    tenant: str,
    *,
    status: str | None = None,
    graph: str | None = None,
    prefix: str | None = None,
    after: str | None = None,
    limit: int,
    most: int,
) -> ThreadPage:
    """A page of ``thread_lines``, which looks at ``most`` threads and no more.

    Status and prefix are found by index; for a graph, every thread is looked at.
    """
    candidates = _candidates(store, tenant, status, prefix, after, False)
    found = _cut(candidates, lambda info: _matching(store, info, status, graph), limit, most)
    return ThreadPage(*found)


def _cut(
    candidates: Iterator[ThreadInfo],
    match: Callable[[ThreadInfo], T | None],
    limit: int,
    most: int,
) -> tuple[tuple[T, ...], str | None]:
    """What matches, and where the next page begins if candidates are left to look at."""
    found: list[T] = []
    last: str | None = None
    for count, info in enumerate(candidates):
        if len(found) == limit or count == most:
            return tuple(found), last
        last = info.key.thread
        matched = match(info)
        found += [] if matched is None else [matched]
    return tuple(found), None


def _matching(
    store: Store, info: ThreadInfo, status: str | None, graph: str | None
) -> ThreadLine | None:
    if graph is not None and info.graph != graph:
        return None
    line = looked_at(store, info)
    return line if status in (None, line.status) else None


def _candidates(
    store: Store,
    tenant: str,
    status: str | None,
    prefix: str | None,
    after: str | None,
    subgraphs: bool,
) -> Iterator[ThreadInfo]:
    """What the index finds: by recorded status, and by name from ``prefix`` to its end."""
    recorded = cast("RunStatus | None", "running" if status == LOST else status)
    if prefix and (after is None or after < prefix):
        first = store.thread(ThreadKey(tenant, prefix))
        if first is not None and recorded in (None, first.status):
            yield first
        after = prefix
    listing = every_thread if subgraphs else own_threads
    for info in listing(store, tenant, status=recorded, after=after):
        if prefix and not info.key.thread.startswith(prefix):
            return
        yield info


def looked_at(store: Store, info: ThreadInfo) -> ThreadLine:
    """A thread, with the reason if it is lost."""
    record = store.run(info.key, info.run_id) if info.status == "running" else None
    reason = why_lost(store, record) if record else ""
    line = thread_line(info)
    return msgspec.structs.replace(line, status=LOST, reason=reason) if reason else line


def found_threads(
    store: Store, tenant: str, status: RunStatus, graph: str | None, after: str | None = None
) -> Iterator[ThreadInfo]:
    """The threads of a status; of those that failed, the ones that no worker will retry."""
    listed = own_threads(store, tenant, status=status, after=after)
    return (info for info in listed if _is_found(info, graph))


def _is_found(info: ThreadInfo, graph: str | None) -> bool:
    held = info.status != "failed" or info.due_at is None
    return held and (graph is None or info.graph == graph)


def asking_threads(
    store: Store, tenant: str, *, graph: str | None = None, after: str | None = None
) -> Iterator[ThreadInfo]:
    """The threads that wait for answers, by name."""
    listed = own_threads(store, tenant, status="interrupted", after=after)
    return (info for info in listed if _asks(info, graph))


def _asks(info: ThreadInfo, graph: str | None) -> bool:
    return info.questions > 0 and (graph is None or info.graph == graph)


class InfoPage(NamedTuple):
    """Lines of the index. ``next`` is the ``after`` of the next page, if some are left to see."""

    infos: tuple[ThreadInfo, ...]
    next: str | None


def found_page(
    store: Store,
    tenant: str,
    status: RunStatus,
    graph: str | None,
    after: str | None,
    *,
    limit: int,
    most: int,
) -> InfoPage:
    """A page of ``found_threads``, which looks at ``most`` threads and no more."""
    listed = own_threads(store, tenant, status=status, after=after)
    return InfoPage(*_cut(listed, lambda one: one if _is_found(one, graph) else None, limit, most))


def asking_page(
    store: Store, tenant: str, graph: str | None, after: str | None, *, limit: int, most: int
) -> InfoPage:
    """A page of ``asking_threads``, which looks at ``most`` threads and no more."""
    listed = own_threads(store, tenant, status="interrupted", after=after)
    return InfoPage(*_cut(listed, lambda one: one if _asks(one, graph) else None, limit, most))
