from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar, cast

import msgspec.structs

from milecastle.app.runs.ownership import why_lost
from milecastle.app.threads.archived import readable_history
from milecastle.app.threads.children import every_thread, is_child, own_threads
from milecastle.app.threads.tagging import tags_at
from milecastle.engine.status import claimed
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey, is_upkeep
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.reading import StoreReader
from milecastle.views.documents import HistoryDocument, ThreadLine
from milecastle.views.lines import checkpoint_line, thread_line

T = TypeVar("T")

_TOGETHER: Final = 1000

LOST: Final = "lost"
"""The status of a thread that is recorded as running, but not known to be."""


def thread_lines(
    store: StoreReader,
    tenant: str,
    *,
    status: str | None = None,
    graph: str | None = None,
    tag: str | None = None,
    prefix: str | None = None,
    after: str | None = None,
    subgraphs: bool = False,
) -> Iterator[ThreadLine]:
    """A tenant's threads, by name, filtered by status, graph, tag or prefix.

    Without their tags: see ``with_tags``.
    """
    for info in _candidates(store, tenant, status, tag, prefix, after, subgraphs):
        line = _matching(store, info, status, graph)
        if line is not None:
            yield line


class ThreadPage(NamedTuple):
    lines: tuple[ThreadLine, ...]
    next: str | None


def thread_page(
    store: StoreReader,
    tenant: str,
    *,
    status: str | None = None,
    graph: str | None = None,
    tag: str | None = None,
    prefix: str | None = None,
    after: str | None = None,
    limit: int,
    most: int,
    upkeep: bool = True,
) -> ThreadPage:
    """A page of ``thread_lines`` with their tags, which looks at no more than ``most`` threads.

    Status, tag and prefix are found by index. For a graph, every thread is looked at; for a status
    and a tag, every thread with that tag. Without ``upkeep``, jobs and schedules are left out.
    """

    def match(info: ThreadInfo) -> ThreadLine | None:
        is_left_out = not upkeep and is_upkeep(info.key.thread)
        return None if is_left_out else _matching(store, info, status, graph)

    candidates = _candidates(store, tenant, status, tag, prefix, after, False)
    lines, last = _cut(candidates, match, limit, most)
    return ThreadPage(with_tags(store, tenant, lines), last)


def with_tags(
    store: StoreReader, tenant: str, lines: Iterable[ThreadLine]
) -> tuple[ThreadLine, ...]:
    lines = tuple(lines)
    if not lines or store.tags is None:
        return lines
    names = [line.thread for line in lines]
    found: dict[str, tuple[str, ...]] = {}
    for first in range(0, len(names), _TOGETHER):
        found |= store.tags.of(tenant, names[first : first + _TOGETHER])
    return tuple(
        msgspec.structs.replace(line, tags=found[line.thread]) if line.thread in found else line
        for line in lines
    )


def _cut(
    candidates: Iterator[ThreadInfo], match: Callable[[ThreadInfo], T | None], limit: int, most: int
) -> tuple[tuple[T, ...], str | None]:
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
    store: StoreReader, info: ThreadInfo, status: str | None, graph: str | None
) -> ThreadLine | None:
    if graph is not None and info.graph != graph:
        return None
    line = looked_at(store, info)
    return line if status in (None, line.status) else None


def _candidates(
    store: StoreReader,
    tenant: str,
    status: str | None,
    tag: str | None,
    prefix: str | None,
    after: str | None,
    subgraphs: bool,
) -> Iterator[ThreadInfo]:
    recorded = cast("RunStatus | None", "running" if status == LOST else status)
    if prefix and (after is None or after < prefix):
        named = store.thread(ThreadKey(tenant, prefix))
        first = named and claimed(named)
        if first is not None and recorded in (None, first.status) and _has(store, first, tag):
            yield first
        after = prefix
    listing = every_thread if subgraphs else own_threads
    if tag is not None:
        recorded = None  # those that have the tag are looked at one by one, and counted
    for info in listing(store, tenant, status=recorded, tag=tag, after=after):
        if prefix and not info.key.thread.startswith(prefix):
            return
        yield info


def _has(store: StoreReader, info: ThreadInfo, tag: str | None) -> bool:
    return tag is None or tag in tags_at(store, info.key)


def looked_at(store: StoreReader, info: ThreadInfo) -> ThreadLine:
    info = claimed(info)
    record = store.run(info.key, info.run_id) if info.status == "running" else None
    reason = why_lost(store, record) if record else ""
    line = thread_line(info)
    return msgspec.structs.replace(line, status=LOST, reason=reason) if reason else line


def found_threads(
    store: StoreReader, tenant: str, status: RunStatus, graph: str | None, after: str | None = None
) -> Iterator[ThreadInfo]:
    """Threads with a status; failed ones only if no worker will retry them."""
    listed = own_threads(store, tenant, status=status, after=after)
    return (info for info in listed if _is_found(info, graph))


def _is_found(info: ThreadInfo, graph: str | None) -> bool:
    held = info.status != "failed" or info.due_at is None
    return held and (graph is None or info.graph == graph)


def history_document(
    store: StoreReader, key: ThreadKey, *, limit: int, before: int | None
) -> HistoryDocument:
    entries, missing = readable_history(store, key, limit=limit, before=before)
    if missing and not entries:
        raise missing
    lines = tuple(checkpoint_line(CheckpointMetadata.of(key, entry)) for entry in entries)
    has_more = missing is not None or (len(lines) == limit and lines[-1].parent_id)
    next = lines[-1].seq if has_more else None
    return HistoryDocument(tenant=key.tenant, thread=key.thread, checkpoints=lines, next=next)


class InfoPage(NamedTuple):
    infos: tuple[ThreadInfo, ...]
    next: str | None


def found_page(
    store: StoreReader,
    tenant: str,
    status: RunStatus,
    graph: str | None,
    after: str | None,
    *,
    limit: int,
    most: int,
) -> InfoPage:
    listed = own_threads(store, tenant, status=status, after=after)
    return InfoPage(*_cut(listed, lambda one: one if _is_found(one, graph) else None, limit, most))


def asking_page(
    store: StoreReader, tenant: str, graph: str | None, after: str | None, *, limit: int, most: int
) -> InfoPage:
    listed = own_threads(store, tenant, status="interrupted", after=after)

    def asking(info: ThreadInfo) -> ThreadInfo | None:
        return info if info.questions > 0 and graph in (None, info.graph) else None

    return InfoPage(*_cut(listed, asking, limit, most))


class RecentPage(NamedTuple):
    """Threads, newest change first. ``next`` continues after the last of ``seen`` threads."""

    lines: tuple[ThreadLine, ...]
    next: str | None
    seen: int


def recent_page(
    store: StoreReader,
    tenant: str,
    *,
    status: str | None = None,
    graph: str | None = None,
    text: str | None = None,
    after: str | None = None,
    limit: int,
    most: int,
    upkeep: bool = True,
) -> RecentPage:
    """A page of threads, newest change first, which looks at no more than ``most`` threads.

    Only the status is found by index. Without ``upkeep``, jobs and schedules are left out.
    """
    recorded = cast("RunStatus | None", "running" if status == LOST else status)
    found: list[ThreadLine] = []
    seen = 0
    while len(found) < limit and seen < most:
        wanted = min(limit - len(found), most - seen)
        page = store.recent_threads(tenant, status=recorded, limit=wanted, after=after)
        seen, after = seen + len(page.items), page.after
        for info in page.items:
            line, name = None, info.key.thread
            is_left_out = is_child(info.key) or (not upkeep and is_upkeep(name))
            if not is_left_out and (text is None or text in name):
                line = _matching(store, info, status, graph)
            found += [] if line is None else [line]
        if after is None:
            break
    return RecentPage(with_tags(store, tenant, found), after, seen)


def status_counts(store: StoreReader, tenant: str, most: int) -> dict[RunStatus, int]:
    """Count threads in each open status, up to ``most``, without jobs and schedules."""
    counted: tuple[RunStatus, ...] = ("running", "queued", "interrupted", "failed", "sleeping")
    return {
        status: sum(
            not is_upkeep(info.key.thread)
            for info in own_threads(store, tenant, status=status, limit=most)
        )
        for status in counted
    }
