"""Closing the unfinished run of a thread from outside: cancel or hold it, or let an entry close it.

Rules:

- No state is decoded: this needs neither the graph nor its types, only the key if it is encrypted.
- A run is cancelled by an entry, which fences out the process that may still drive it: its next
  commit gets ``Conflict``. The runs of its subgraphs are closed after it.
- An entry that leaves a step for good (fork, update, discard, migration) leaves its subgraphs, too:
  no run will find them again. Their runs are closed before that entry is written. If it is then
  not written, the thread is still in its step, where a cancelled subgraph is resumed.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec.structs

from milecastle.app.emitting import notify_rest
from milecastle.app.threads.children import children_of
from milecastle.codec.deltas import LogCodec
from milecastle.engine.assignment import LOST
from milecastle.engine.failing import describe, describe_lost
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.engine.records import attempts_at
from milecastle.errors import Conflict, InvalidRequest, RunCancelled, ThreadNotFound
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import (
    TRANSITIONS,
    Failure,
    RunRecord,
    RunStatus,
    ThreadInfo,
    may_become,
)
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.clock import Clock
from milecastle.ports.store import Chain, Store

_ATTEMPTS = 20
_FROM_OUTSIDE = "cancelled from outside"


def cancel_run(
    store: Store, codec: LogCodec, clock: Clock, key: ThreadKey, run_id: str | None = None
) -> bool:
    """Close the unfinished run of a thread, with a failure record; return whether there was one.

    With ``run_id``, only that run: ``False`` if another one has the thread by now.
    A run that failed has ended: ``False``, unless workers would retry it, or inputs wait behind it:
    then its retry is cancelled. So is what a thread waits for that a user took back to before the
    end of its run. The thread can be resumed as after a cancellation. ``InvalidRequest`` if inputs
    wait, and the checkpoint from which the next one would start is gone. If the run has ended and
    inputs wait, the first of them is removed, and the run that it would have started is cancelled.
    """
    if not _cancel(store, codec, clock, key, run_id):
        return False
    close_children(store, codec, clock, key)
    return True


def close_children(store: Store, codec: LogCodec, clock: Clock, key: ThreadKey) -> None:
    """Cancel every unfinished run of a subgraph of this thread. ``codec`` is bound to no thread."""
    for child in list(children_of(store, key)):
        if TRANSITIONS[child.status]:
            _cancel(store, codec, clock, child.key)


def _cancel(
    store: Store, codec: LogCodec, clock: Clock, key: ThreadKey, run_id: str | None = None
) -> bool:
    for _ in range(1, _ATTEMPTS):
        with suppress(Conflict):  # its driver committed a step meanwhile
            return _cancel_at_head(store, codec, clock, key, run_id)
    return _cancel_at_head(store, codec, clock, key, run_id)


def _cancel_at_head(
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
    failure = _cancelled(clock, record, attempt_at(store, codec.for_thread(key), key, head))
    _close(store, codec, clock, chain, record, "cancelled", _FROM_OUTSIDE, failure)
    return True


def _cancelled(clock: Clock, record: RunRecord, attempt: int) -> Failure:
    error = RunCancelled(thread=record.key.thread, run_id=record.run_id)
    return describe(error, run_id=record.run_id, node=None, time=clock.now(), attempt=attempt)


def _cancel_waiting(
    store: Store, codec: LogCodec, clock: Clock, chain: Chain, ended: RunRecord
) -> bool:
    """Remove the first waiting input of a thread whose run has ended, and cancel its run.

    The entry is one of the run that ended: it leaves the thread where it is, and fences out a
    worker that is about to start the input.
    """
    key = ended.key
    waiting, known = waiting_inputs(store, key, 1), store.thread(key)
    record = store.run(key, waiting[0].run_id) if waiting else None
    if record is None or known is None:
        return False
    position = Position(values={}, entry=chain.entries[-1])
    note = f"run {record.run_id} was {_FROM_OUTSIDE}"
    batch = _journal(codec, clock, chain, ended).append(position, "takeover", note)
    record = msgspec.structs.replace(record, status="cancelled", ended_at=clock.now())
    batch = msgspec.structs.replace(
        batch,
        runs=(record,),
        failure=_cancelled(clock, record, 1),
        thread=msgspec.structs.replace(known, worker="", due_at=None),
        dequeues=record.run_id,
    )
    store.commit(batch)
    notify_rest(store, key)
    return True


def reject_input(store: Store, clock: Clock, journal: Journal | None, error: Exception) -> bool:
    """End a run whose waiting input its thread refuses, so that the next one can start.

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
    """Whether something is to follow a run that ended at the head of its thread.

    That is the retry of one that failed, or an input that waits behind it. If a user took the
    thread back to before the end of its run, it waits to be resumed from there.
    """
    if ended.status in ("completed", "superseded"):
        return bool(head.next or head.route)
    if ended.status != "failed":
        return False
    info = store.thread(ended.key)
    return info is not None and (
        info.due_at is not None or bool(waiting_inputs(store, ended.key, 1))
    )


def before_input(store: Store, key: ThreadKey, head: Entry) -> Chain | None:
    """The chain of the checkpoint to which the newest input was applied; ``None`` if to none."""
    wanted: str | None = head.id
    for entry in store.history(key):
        if entry.id != wanted:
            continue  # it is of a branch that was left
        wanted = entry.parent_id
        if entry.source == "input":
            seq = store.locate(key, wanted) if wanted else None
            base = store.read(key, seq) if seq else None
            if base or wanted is None:
                return base
            break
    raise InvalidRequest(
        f"thread '{key.thread}' cannot go back to before the input of its unfinished run, for "
        "another input to start there: that checkpoint is not in this thread (it was pruned, or "
        f"the thread started as a fork); resume('{key.thread}') or retry('{key.thread}') continues "
        f"the run, delete('{key.thread}', take_over=True) removes it with the inputs that wait"
    )


def count_lost(store: Store, key: ThreadKey) -> int:
    """How many workers in a row were lost with the current step of a thread, or before it."""
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
    _close(store, codec, clock, chain, record, "failed", failure.message, failure)
    return failure


def _close(
    store: Store,
    codec: LogCodec,
    clock: Clock,
    chain: Chain,
    record: RunRecord,
    status: RunStatus,
    note: str,
    failure: Failure,
) -> None:
    """End a run at the head of its thread, by an entry. The thread stays in its lane."""
    key, position = record.key, Position(values={}, entry=chain.entries[-1])
    batch = _journal(codec, clock, chain, record).append(position, "takeover", note, status)
    known, info = store.thread(key), batch.thread
    if known and info:  # no state was decoded: the open questions are the same as before
        kept = {"lane": known.lane, "priority": known.priority, "questions": known.questions}
        info = msgspec.structs.replace(info, **kept)
    store.commit(msgspec.structs.replace(batch, failure=failure, thread=info))
    notify_rest(store, key)


def _journal(codec: LogCodec, clock: Clock, chain: Chain, record: RunRecord) -> Journal:
    """Writes at the head of a thread, of which no state is decoded."""
    head, codec = chain.entries[-1], codec.for_thread(record.key)
    codec.unseal_last(chain.entries)  # or the entry would not fit those before it
    position = Position(values={}, entry=head)
    return Journal(record=record, codec=codec, clock=clock, position=position, head=head.seq)


def supersede_running(store: Store, codec: LogCodec, journal: Journal, head: Entry) -> None:
    """Let the journal's next entry, on top of ``head``, close the run that is active there."""
    record = store.run(journal.key, head.run_id)
    if record is None or record.status not in ("queued", "running"):
        return
    attempt = attempt_at(store, codec, journal.key, head)
    journal.supersede(record, head.next, attempt)


def attempt_at(store: Store, codec: LogCodec, key: ThreadKey, head: Entry) -> int:
    """The attempt number of the thread's current step; only the counts of its tasks are decoded."""
    rows = {
        result.task: codec.decode_state(codec.unseal_result(result))
        for result in store.results(key)
        if result.task.partition("!")[0].isdigit()
    }
    return attempts_at(head.step, rows)
