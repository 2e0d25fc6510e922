"""Threads as they are listed: by status, where running and lost are told apart, and by graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import msgspec.structs

from milecastle.app.runtime.children import every_thread, own_threads
from milecastle.app.runtime.ownership import why_lost
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Store
from milecastle.views.documents import ThreadLine
from milecastle.views.lines import thread_line

__all__ = ["LOST", "asking_threads", "found_threads", "looked_at", "thread_lines"]

LOST: Final = "lost"
"""The status of a thread that is recorded as running, but not known to be."""


def thread_lines(
    store: Store,
    tenant: str,
    *,
    status: str | None = None,
    graph: str | None = None,
    after: str | None = None,
    subgraphs: bool = False,
) -> Iterator[ThreadLine]:
    """The threads of a tenant, by name, with this status or of this graph if one is given."""
    recorded = cast("RunStatus | None", "running" if status == LOST else status)
    listing = every_thread if subgraphs else own_threads
    for info in listing(store, tenant, status=recorded, after=after):
        if graph is None or info.graph == graph:
            line = looked_at(store, info)
            if status in (None, line.status):
                yield line


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
    for info in own_threads(store, tenant, status=status, after=after):
        held = status != "failed" or info.due_at is None
        if held and (graph is None or info.graph == graph):
            yield info


def asking_threads(
    store: Store, tenant: str, *, graph: str | None = None, after: str | None = None
) -> Iterator[ThreadInfo]:
    """The threads that wait for answers, by name."""
    for info in own_threads(store, tenant, status="interrupted", after=after):
        if info.questions and (graph is None or info.graph == graph):
            yield info
