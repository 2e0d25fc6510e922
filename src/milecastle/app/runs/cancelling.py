"""Closing the unfinished run of a thread from outside: cancel it, hold it, or reject its input.

No state is decoded: this needs neither the graph nor its types, only the key if it is encrypted.
"""

from __future__ import annotations

from functools import partial

import msgspec.structs

from milecastle.app.emitting import notify_rest
from milecastle.app.threads.closing import (
    FROM_OUTSIDE,
    before_input,
    cancel_at_head,
    close_children,
    close_run,
    describe_cancelled,
    despite_conflicts,
    journal_at,
)
from milecastle.codec.deltas import LogCodec
from milecastle.engine.assignment import LOST
from milecastle.engine.failure_records import describe, describe_lost
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.errors import ThreadNotFound
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import TRANSITIONS, Failure, RunRecord, ThreadInfo, may_become
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.clock import Clock
from milecastle.ports.store import Chain, Store


def cancel_run(
    store: Store, codec: LogCodec, clock: Clock, key: ThreadKey, run_id: str | None = None
) -> bool:
    """Close the unfinished run of a thread, with a failure record; return whether there was one.

    With ``run_id``, only that run: ``False`` if another one has the thread by now. A run that
    failed has ended: ``False``, unless workers would retry it, or inputs wait behind it: then its
    retry is cancelled. So are the waits of a thread a user took back to before its run's end.
    The thread can be resumed as after a cancellation. ``InvalidRequest`` if inputs wait, and the
    checkpoint from which the next one would start is gone. If the run has ended and inputs wait,
    the first of them is removed, and the run it would have started is cancelled.
    """
    is_cancelled = despite_conflicts(partial(_cancel, store, codec, clock, key, run_id))
    if is_cancelled:
        close_children(store, codec, clock, key)
    return is_cancelled


def _cancel(
    store: Store, codec: LogCodec, clock: Clock, key: ThreadKey, run_id: str | None
) -> bool:
    found = store.open(key)
    if found is None:
        raise ThreadNotFound(tenant=key.tenant, thread=key.thread)
    chain, record = found
    head = chain.entries[-1]
    if run_id not in (None, head.run_id):
        return False
    if record is not None and _is_expected(store, head, record):
        record = msgspec.structs.replace(
            record,
            run_id=clock.new_id(),
            status="queued",
            retry_count=record.retry_count + 1,
            previous_run_id=record.run_id,
            started_at=clock.now(),
            ended_at=None,
            owner=None,
        )
    if record is None:
        return False
    if not TRANSITIONS[record.status]:
        return run_id is None and _cancel_waiting(store, codec, clock, chain, record)
    if waiting_inputs(store, key, 1):
        before_input(store, key, head)  # where the next one starts, or refused
    cancel_at_head(store, codec, clock, chain, record)
    return True


def _cancel_waiting(
    store: Store, codec: LogCodec, clock: Clock, chain: Chain, ended: RunRecord
) -> bool:
    """Remove the first waiting input of a thread whose run has ended, and cancel its run.

    The entry is one of the run that ended: it leaves the thread where it is, and fences out a
    worker about to start the input.
    """
    key = ended.key
    waiting, known = waiting_inputs(store, key, 1), store.thread(key)
    record = store.run(key, waiting[0].run_id) if waiting else None
    if record is None or known is None:
        return False
    position = Position(values={}, entry=chain.entries[-1])
    note = f"run {record.run_id} was {FROM_OUTSIDE}"
    batch = journal_at(codec, clock, chain, ended).append(position, "takeover", note)
    record = msgspec.structs.replace(record, status="cancelled", ended_at=clock.now())
    batch = msgspec.structs.replace(
        batch,
        runs=(record,),
        failure=describe_cancelled(clock, record, 1),
        thread=msgspec.structs.replace(known, worker="", due_at=None),
        dequeues=record.run_id,
    )
    store.commit(batch)
    notify_rest(store, key)
    return True


def reject_input(store: Store, clock: Clock, journal: Journal | None, error: Exception) -> bool:
    """End a run whose waiting input its thread refuses, so the next one can start.

    ``False`` if the run was not enqueued, or has applied its input, or its thread is gone.
    """
    if journal is None or journal.dequeues is None or journal.known:
        return False
    known = store.thread(journal.key)
    if known is None:
        return False
    journal.turn("failed")
    run_id = journal.record.run_id
    failure = describe(error, run_id=run_id, node=None, time=clock.now(), attempt=1)
    line = msgspec.structs.replace(known, worker="", due_at=None)
    batch = msgspec.structs.replace(journal.close(failure), thread=line, dequeues=journal.dequeues)
    store.commit(batch)
    return True


def _is_expected(store: Store, head: Entry, ended: RunRecord) -> bool:
    """True if something follows a run that ended at its thread's head.

    That is the retry of one that failed, or an input waiting behind it. If a user took the
    thread back to before its run's end, it waits to be resumed from there.
    """
    if ended.status in ("completed", "superseded"):
        return bool(head.next or head.route)
    if ended.status != "failed":
        return False
    info = store.thread(ended.key)
    return info is not None and (
        info.due_at is not None or bool(waiting_inputs(store, ended.key, 1))
    )


def count_lost(store: Store, key: ThreadKey) -> int:
    """Number of workers lost in a row with a thread's current step, or before it."""
    chain = store.read(key)
    count = 0
    for entry in reversed(chain.entries if chain else ()):
        if entry.source != "takeover" or entry.note != LOST:
            break
        count += 1
    return count


def hold_lost(
    store: Store, codec: LogCodec, clock: Clock, info: ThreadInfo, count: int
) -> Failure | None:
    """End the run of a thread with which so many workers were lost; it waits for ``retry``.

    ``None`` if the run has ended meanwhile. ``Conflict`` if somebody else has the thread by now.
    """
    chain, record = store.open(info.key) or (None, None)
    if chain is None or record is None or not may_become(record.status, "failed"):
        return None
    nodes = chain.entries[-1].next
    node = nodes[0] if len(nodes) == 1 else None
    failure = describe_lost(record.run_id, node=node, time=clock.now(), count=count)
    close_run(store, codec, clock, chain, record, "failed", failure.message, failure)
    return failure
