"""Closing a thread's unfinished run from outside: cancel it, hold it, or reject its input.

No state is decoded: this needs neither the graph nor its types, only the key if it is encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec.structs

from milecastle.app.emitting import notify_rest
from milecastle.app.runs.spawning import (
    is_cancelled_with,
    may_have_children,
    notify_parent,
    spawned_by,
)
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
from milecastle.engine.assignment import LOST, NOW
from milecastle.engine.failure_records import describe, describe_lost, with_cause
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.errors import Conflict, InvalidRequest, MailboxFull, ThreadNotFound
from milecastle.model.checkpoint import Entry
from milecastle.model.children import OUTSTANDING
from milecastle.model.keys import ThreadKey
from milecastle.model.notices import Notice, is_unsettled, notices_of, settled, with_notices
from milecastle.model.run import TRANSITIONS, Failure, RunRecord, ThreadInfo, may_become
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.clock import Clock
from milecastle.ports.store import Batch, Chain, Store


def cancel_run(
    store: Store, codec: LogCodec, clock: Clock, key: ThreadKey, run_id: str | None = None
) -> bool:
    """Close a thread's unfinished run, with a failure record; return whether there was one.

    With ``run_id``, only that run: ``False`` if another one has the thread by now. A run that
    failed has ended: ``False``, unless workers would retry it, or inputs wait behind it: then its
    retry is cancelled. So are the waits in a thread a user took back to before its run's end.
    The thread can be resumed as after a cancellation. ``InvalidRequest`` if inputs wait, and the
    checkpoint from which the next one would start is gone. If the run has ended and inputs wait,
    the first one is removed, and the run it would have started is cancelled.
    """
    is_cancelled = despite_conflicts(partial(_cancel, store, codec, clock, key, run_id))
    if is_cancelled:
        close_children(store, codec, clock, key)
    with suppress(MailboxFull, Conflict):  # then a worker does it, or another writer has
        settle(store, codec, clock, key)
    return is_cancelled


def settle(
    store: Store,
    codec: LogCodec,
    clock: Clock,
    key: ThreadKey,
    read_state: Callable[[], Any] | None = None,
    notify: Callable[[Notice], None] | None = None,
) -> bool:
    """Do what a run left to do after its last commit; return whether there was anything.

    Notify its parent if it was spawned, and its graph's hooks; cancel its children if it was
    cancelled. Then its index row says so: until then it is due, and a writer that replaces it calls
    this first. Without ``read_state`` a completed run's state cannot be sent, and without
    ``notify`` no hook notified: that is left to a worker.
    """
    head, info = store.head(key), store.thread(key)
    if head is None or info is None or not is_unsettled(info):
        return False
    notices = notices_of(info)
    if OUTSTANDING in info.waiting_topics and not _settle_family(
        store, codec, clock, key, info, read_state
    ):
        return False
    for notice in notices:
        if notify is None:
            return False
        notify(notice)
    store.commit(Batch(key=key, head=head.seq, head_id=head.id, thread=settled(info)))
    return True


def _settle_family(
    store: Store,
    codec: LogCodec,
    clock: Clock,
    key: ThreadKey,
    info: ThreadInfo,
    read_state: Callable[[], Any] | None,
) -> bool:
    record, is_completed = store.run(key, info.run_id), info.status == "completed"
    if is_completed and read_state is None:
        return False
    if record is not None:
        state = read_state() if is_completed and read_state else None
        notify_parent(store, codec, record, info.status, state)
    if info.status == "cancelled":
        for child in list(spawned_by(store, key)):
            with suppress(InvalidRequest):  # it is gone, or an input waits that could not start
                cancel_spawned(store, codec, clock, child.key, key)
    return True


def cancel_spawned(
    store: Store, codec: LogCodec, clock: Clock, key: ThreadKey, parent: ThreadKey
) -> None:
    while (head := store.head(key)) is not None:
        if not is_cancelled_with(store.run(key, head.run_id), parent):
            return
        if cancel_run(store, codec, clock, key, head.run_id):
            return
        newest = store.head(key)
        if newest is None or newest.run_id == head.run_id:
            return  # it has ended


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
    known = store.thread(key)
    may_spawn = record.status == "running" or bool(known and known.worker)
    has_children = next(spawned_by(store, key), None) is not None
    owes = has_children or (may_spawn and may_have_children(store))
    cancel_at_head(store, codec, clock, chain, record, owes=owes)
    return True


def _cancel_waiting(
    store: Store, codec: LogCodec, clock: Clock, chain: Chain, ended: RunRecord
) -> bool:
    """Remove a thread's first waiting input after its run has ended, and cancel its run.

    The entry belongs to the ended run: it leaves the thread where it is, and fences out a
    worker about to start the input.
    """
    key = ended.key
    waiting, known = waiting_inputs(store, key, 1), store.thread(key)
    record = store.run(key, waiting[0].mark) if waiting else None
    if record is None or known is None:
        return False
    position = Position(values={}, entry=chain.entries[-1])
    note = f"run {record.run_id} was {FROM_OUTSIDE}"
    due_at = NOW if is_unsettled(known) else None
    batch = journal_at(codec, clock, chain, ended).append(position, "takeover", note)
    record = msgspec.structs.replace(record, status="cancelled", ended_at=clock.now())
    batch = msgspec.structs.replace(
        batch,
        runs=(record,),
        failure=describe_cancelled(clock, record, 1),
        thread=msgspec.structs.replace(known, worker="", due_at=due_at),
        consumes=(waiting[0].number,),
    )
    store.commit(batch)
    notify_rest(store, key)
    return True


def reject_input(store: Store, clock: Clock, journal: Journal | None, error: Exception) -> bool:
    """End a run whose waiting input its thread refuses, so the next one can start.

    ``False`` if its input did not wait, or was applied, or its thread is gone.
    """
    if journal is None or journal.input is None or journal.known:
        return False
    known = store.thread(journal.key)
    if known is None:
        return False
    run_id, consumes = journal.record.run_id, (journal.input,)
    failure = describe(error, run_id=run_id, node=None, time=clock.now(), attempt=1)
    journal.fail(error, failure)
    line = msgspec.structs.replace(known, worker="", due_at=None)
    if "failed" in journal.notifies:
        line = with_notices(line, journal.record, [Notice("failed", run_id, journal.head)])
    batch = msgspec.structs.replace(journal.close(failure), thread=line, consumes=consumes)
    store.commit(batch)
    return True


def _is_expected(store: Store, head: Entry, ended: RunRecord) -> bool:
    """True if something follows a run that ended at its thread's head.

    That is a failed run's retry, or an input waiting behind it. If a user took the
    thread back to before its run's end, it waits to be resumed from there.
    """
    if ended.status in ("completed", "superseded"):
        return bool(head.next or head.route)
    if ended.status != "failed":
        return False
    info = store.thread(ended.key)
    if info is None:
        return False
    is_retried = info.due_at is not None and not is_unsettled(info)
    return is_retried or bool(waiting_inputs(store, ended.key, 1))


def count_lost(store: Store, key: ThreadKey) -> int:
    chain = store.read(key)
    count = 0
    for entry in reversed(chain.entries if chain else ()):
        if entry.source != "takeover" or entry.note != LOST:
            break
        count += 1
    return count


def hold_lost(
    store: Store,
    codec: LogCodec,
    clock: Clock,
    info: ThreadInfo,
    count: int,
    notifies: Collection[str] = (),
) -> Failure | None:
    """End a thread's run with which so many workers were lost; it waits for ``retry``.

    ``None`` if the run has ended meanwhile. ``Conflict`` if somebody else has the thread by now.
    """
    chain, record = store.open(info.key) or (None, None)
    if chain is None or record is None or not may_become(record.status, "failed"):
        return None
    nodes = chain.entries[-1].next
    node = nodes[0] if len(nodes) == 1 else None
    failure = describe_lost(record.run_id, node=node, time=clock.now(), count=count)
    record = with_cause(record, failure)
    close_run(
        store, codec, clock, chain, record, "failed", failure.message, failure, notifies=notifies
    )
    return failure
