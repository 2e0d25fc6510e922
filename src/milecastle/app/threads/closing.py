"""Closing the runs an entry leaves behind: subgraphs', and the one at the head.

Rules:

- No state is decoded: this needs neither the graph nor its types, only the key if it is encrypted.
- A run is closed by an entry, which fences out the process that may still drive it: its next
  commit gets ``Conflict``.
- An entry leaving a step for good (fork, update, discard, migration) leaves its subgraphs, too:
  no run will find them again. Their runs are closed before that entry is written. If it is then
  not written, the thread is still in its step, where a cancelled subgraph is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec.structs

from milecastle.app.emitting import notify_rest
from milecastle.app.threads.children import children_of
from milecastle.codec.deltas import LogCodec
from milecastle.engine.failure_records import describe
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.engine.records import attempts_at
from milecastle.errors import Conflict, InvalidRequest, RunCancelled
from milecastle.model.checkpoint import Entry
from milecastle.model.children import owed
from milecastle.model.keys import ThreadKey
from milecastle.model.notices import Notice, event_of, notices_of, with_notices
from milecastle.model.run import TRANSITIONS, Failure, RunRecord, RunStatus
from milecastle.ports.clock import Clock
from milecastle.ports.store import Chain, Store

T = TypeVar("T")

_ATTEMPTS: Final = 20

FROM_OUTSIDE: Final = "cancelled from outside"


def despite_conflicts(close: Callable[[], T]) -> T:
    """Close a run, again if its driver committed a step meanwhile."""
    for _ in range(1, _ATTEMPTS):
        with suppress(Conflict):
            return close()
    return close()


def close_children(store: Store, codec: LogCodec, clock: Clock, key: ThreadKey) -> None:
    for child in list(children_of(store, key)):
        if TRANSITIONS[child.status]:
            despite_conflicts(partial(_cancel_child, store, codec, clock, child.key))


def _cancel_child(store: Store, codec: LogCodec, clock: Clock, key: ThreadKey) -> None:
    chain, record = store.open(key) or (None, None)
    if chain is not None and record is not None and TRANSITIONS[record.status]:
        cancel_at_head(store, codec, clock, chain, record)


def cancel_at_head(
    store: Store,
    codec: LogCodec,
    clock: Clock,
    chain: Chain,
    record: RunRecord,
    *,
    owes: bool = False,
) -> None:
    """``owes``: it may have children, which are cancelled after the commit."""
    key, head = record.key, chain.entries[-1]
    failure = describe_cancelled(clock, record, attempt_at(store, codec.for_thread(key), key, head))
    close_run(store, codec, clock, chain, record, "cancelled", FROM_OUTSIDE, failure, owes=owes)


def describe_cancelled(clock: Clock, record: RunRecord, attempt: int) -> Failure:
    error = RunCancelled(thread=record.key.thread, run_id=record.run_id)
    return describe(error, run_id=record.run_id, node=None, time=clock.now(), attempt=attempt)


def close_run(
    store: Store,
    codec: LogCodec,
    clock: Clock,
    chain: Chain,
    record: RunRecord,
    status: RunStatus,
    note: str,
    failure: Failure,
    *,
    owes: bool = False,
    notifies: Collection[str] = (),
) -> None:
    """``owes``: it may have children. ``notifies``: its graph's hook events."""
    key, position = record.key, Position(values={}, entry=chain.entries[-1])
    batch = journal_at(codec, clock, chain, record).append(position, "takeover", note, status)
    known, info = store.thread(key), batch.thread
    if known and info:  # no state was decoded: the open questions are the same as before
        kept = {
            "lane": known.lane or info.lane,
            "priority": known.priority,
            "questions": known.questions,
        }
        info = msgspec.structs.replace(info, **kept)
        notices = notices_of(known)  # a graph's caller has settled them, others have not
        if (event := event_of(info)) and event in notifies:
            notices.append(Notice(event, record.run_id, batch.entries[-1].seq))
        info = with_notices(info, record, notices)
        info = owed(info, record) if owes else info
    store.commit(msgspec.structs.replace(batch, failure=failure, thread=info))
    notify_rest(store, key)


def journal_at(codec: LogCodec, clock: Clock, chain: Chain, record: RunRecord) -> Journal:
    head, codec = chain.entries[-1], codec.for_thread(record.key)
    codec.unseal_last(chain.entries)  # or the entry would not fit those before it
    position = Position(values={}, entry=head)
    return Journal(record=record, codec=codec, clock=clock, position=position, head=head.seq)


def supersede_running(store: Store, codec: LogCodec, journal: Journal, head: Entry) -> None:
    record = store.run(journal.key, head.run_id)
    if record is None or record.status not in ("queued", "running"):
        return
    attempt = attempt_at(store, codec, journal.key, head)
    journal.supersede(record, head.next, attempt)


def attempt_at(store: Store, codec: LogCodec, key: ThreadKey, head: Entry) -> int:
    rows = {
        result.task: codec.decode_state(codec.unseal_result(result))
        for result in store.results(key)
        if result.task.partition("!")[0].isdigit()
    }
    return attempts_at(head.step, rows)


def before_input(store: Store, key: ThreadKey, head: Entry) -> Chain | None:
    """The checkpoint's chain to which the newest input was applied; ``None`` if to none."""
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
