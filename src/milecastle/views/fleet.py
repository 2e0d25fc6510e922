from __future__ import annotations

from collections.abc import Iterator

from milecastle.app.threads.reading import running_now
from milecastle.ports.buckets import bucket_levels
from milecastle.ports.claims import ClaimStore, system_time, unserved_databases
from milecastle.views.documents import HeldLine, QueueDocument, WorkersDocument
from milecastle.views.lines import bucket_line, held_line, lane_line, limit_line, worker_line

STUCK_AFTER = 600.0
"""After how many seconds without a checkpoint a running thread is shown as long."""


def workers_document(
    store: ClaimStore, *, threads: bool = True, stuck_after: float = STUCK_AFTER
) -> WorkersDocument:
    workers = store.workers()
    lines = tuple(worker_line(worker) for worker in workers)
    held = tuple(_held(store, stuck_after)) if threads else ()
    return WorkersDocument(workers=lines, threads=held, unserved=unserved_databases(store, workers))


def _held(store: ClaimStore, stuck_after: float) -> Iterator[HeldLine]:
    for worker in store.workers():
        for key in store.claimed(worker.id):
            head = store.head(key)
            if head is not None:
                _, nodes = running_now(store, key, head, "running")
                yield held_line(worker, key, head, nodes, system_time(), stuck_after)


def queue_document(store: ClaimStore) -> QueueDocument:
    workers, now = store.workers(), store.now()
    return QueueDocument(
        lanes=tuple(lane_line(depth, workers) for depth in store.depths()),
        limits=tuple(limit_line(limit) for limit in store.limits()),
        buckets=tuple(bucket_line(level, now) for level in bucket_levels(store)),
    )
