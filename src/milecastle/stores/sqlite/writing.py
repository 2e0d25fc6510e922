"""What is written: batches, prunings and deletions, each inside one transaction.

Rules:

- Everything is checked before anything is written.
- A delta or a rollup builds on the head: its parent must be the head's checkpoint. So a writer of
  a thread that was deleted and created again is refused, though the new one has the same head.
- The index of threads changes on transitions and not on steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec.structs

from milecastle.model.checkpoint import DELTA, HOLDING, ROLLUP, SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.fencing import check_cut, conflict, input_known, inputs_wait
from milecastle.ports.store import Batch
from milecastle.stores.sqlite.log import Known, LastEntry, ThreadLog
from milecastle.stores.sqlite.rows import (
    SPAN,
    Row,
    RunAndGraph,
    ThreadRow,
    checked,
    entry_row,
    failure_row,
    pack_id,
    pack_parent,
    read_text,
    result_row,
    run_row,
    summed,
    thread_values,
    write_text,
)
from milecastle.stores.sqlite.transaction import Transaction

__all__ = [
    "delete_thread",
    "is_plain",
    "last_of",
    "prune_thread",
    "put_thread",
    "step_row",
    "write_batch",
]


def is_plain(batch: Batch) -> bool:
    """Whether a batch is nothing but one entry."""
    return not (
        len(batch.entries) != 1
        or batch.runs
        or batch.results
        or batch.failure
        or batch.manifest
        or batch.thread
        or batch.dequeues
    )


def step_row(batch: Batch, known: Known) -> Row | None:
    """What ``append`` is given for the only entry of a batch; ``None`` if that is not enough.

    The entry must follow the one that is known to be the last, and end no results.
    """
    if len(batch.entries) != 1:
        return None
    entry, last = batch.entries[0], known.last
    number = known.numbers.get((entry.run_id, entry.fingerprint))
    if (
        last is None
        or entry.parent_id != last[0]
        or batch.head_id not in (None, last[0])
        or number is None
        or entry.seq != batch.head + 1
        or not 1 < entry.seq < SPAN
        or (known.has_results and entry.source not in HOLDING)
    ):
        return None
    prior = last[2] if entry.kind == ROLLUP else None
    row = entry_row(entry, known.id, number, last[1], prior)
    return (*row, row[0] - 1, last[1])


def write_batch(transaction: Transaction, batch: Batch, known: Known | None) -> Known | None:
    """Append a batch, or raise ``Conflict``. What is known of the thread afterwards."""
    row = step_row(batch, known) if known and batch.unless is None else None
    if known is not None and row is not None and transaction.insert("append", row):
        moved = known.with_last(last_of(batch.entries[0], row[1]))
        if not is_plain(batch):
            _write_rest(transaction, transaction.thread(batch.key), moved, batch)
        return moved
    thread = transaction.thread(batch.key)
    now = _fresh(known, thread)
    head = ThreadLog(transaction, thread, now).newest() if thread and now else None
    _check_fence(batch, head)
    if known and batch.head and thread and known.id != thread.id:
        # The thread was created again since this store last read it; so the writer is outdated too.
        raise conflict(batch.key, batch.head + 1, head.seq if head else 0)
    if batch.unless is not None and thread and transaction.run_of_input(thread, batch.unless):
        raise input_known(batch.key, batch.head)
    if thread is None and (
        batch.entries or batch.results or batch.runs or batch.failure or batch.thread
    ):
        thread = _begin(transaction, batch.key)
        now = Known(thread.id)
    if thread and now:
        _write_entries(transaction, thread, now, head, batch.entries)
    _write_rest(transaction, thread, now, batch)
    return now


def _fresh(known: Known | None, thread: ThreadRow | None) -> Known | None:
    """What is known of the thread, to be changed; nothing if it is a different one now."""
    if thread is None:
        return None
    if known is None or known.id != thread.id:
        return Known(thread.id)
    return msgspec.structs.replace(known, origins={**known.origins}, numbers={**known.numbers})


def _write_rest(
    transaction: Transaction, thread: ThreadRow | None, known: Known | None, batch: Batch
) -> None:
    """Write everything except entries."""
    if thread and known:
        _write_results(transaction, thread, known, batch)
        _write_records(transaction, thread, batch)
    if batch.manifest is not None:
        fingerprint, manifest = batch.manifest
        values = batch.key.tenant, write_text(fingerprint), manifest
        transaction.run("put_manifest", summed(values))


def prune_thread(
    transaction: Transaction, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]
) -> int:
    """Replace some entries by snapshots and drop what is below ``cut``."""
    thread = transaction.thread(key)
    known = Known(thread.id if thread else 0)
    newest = ThreadLog(transaction, thread, known).newest() if thread else None
    if (newest.seq if newest else 0) != head:
        raise conflict(key, head, newest.seq if newest else 0)
    check_cut(key, newest.roll_seq if newest else 0, cut, rewritten)
    if thread is None:
        return 0
    for entry in rewritten:
        if entry.seq >= max(cut, thread.first):
            number = _origin(transaction, thread, known, (entry.run_id, entry.fingerprint))
            parent = pack_parent(entry)
            row = entry_row(entry, thread.id, number, parent)
            transaction.run("replace_entry", (*row, parent))
    if cut <= thread.first:
        return 0
    ThreadLog(transaction, thread, known).drop_dead_results(head)
    transaction.run("keep_parent", (thread.origin + cut, thread.origin + cut))
    dropped = transaction.run("drop_entries", (thread.origin + 1, thread.origin + cut - 1))
    put_thread(transaction, msgspec.structs.replace(thread, first=cut))
    return dropped


def delete_thread(
    transaction: Transaction, key: ThreadKey, head: int | None, head_id: str | None
) -> bool:
    """Remove a thread and all its rows; with a head, only if that is its head."""
    thread = transaction.thread(key)
    if head is not None or head_id is not None:
        newest = ThreadLog(transaction, thread, Known(thread.id)).newest() if thread else None
        found = newest.seq if newest else 0
        if head not in (None, found):
            raise conflict(key, head or 0, found)
        if head_id not in (None, newest.id if newest else None):
            raise conflict(key, found + 1, found)
        if thread and transaction.one("input_beside", (thread.origin, thread.last, "")):
            raise inputs_wait(key, found)
    if thread is None:
        return False
    found = 0
    for name in ("drop_results", "drop_origins", "drop_inputs"):
        transaction.run(name, (thread.origin, thread.last))
    transaction.run("drop_failures", (thread.id,))
    transaction.run("drop_tags", (thread.id,))
    found += transaction.run("drop_runs", (thread.id,))
    found += transaction.run("drop_entries", (thread.origin, thread.last))
    transaction.run("drop_thread", (thread.id,))
    return found > 0


def last_of(entry: Entry, packed: str | bytes) -> LastEntry:
    """What is remembered of a written entry. The chain of a rollup continues below it."""
    return entry.id, packed, entry.roll_seq if entry.kind == DELTA else entry.seq


def _check_fence(batch: Batch, head: Entry | None) -> None:
    newest = head.seq if head else 0
    if batch.head != newest:
        raise conflict(batch.key, batch.head + 1, newest)
    before = head.id if head else None
    if batch.head_id not in (None, before):
        raise conflict(batch.key, newest + 1, newest)
    for seq, entry in enumerate(batch.entries, newest + 1):
        if entry.seq != seq or (entry.kind != SNAPSHOT and entry.parent_id != before):
            raise conflict(batch.key, entry.seq, newest)
        before = entry.id


def _begin(transaction: Transaction, key: ThreadKey) -> ThreadRow:
    """A new thread. Its row is not complete before ``_write_records`` has put it."""
    transaction.run("new_thread", (key.tenant, key.thread))
    return ThreadRow(id=transaction.cursor.lastrowid or 0, key=key, is_new=True)


def put_thread(transaction: Transaction, thread: ThreadRow) -> None:
    """Write a thread's row in the index, with its checksum."""
    values = summed(thread_values(thread))
    transaction.run("put_thread", (*values[3:], thread.id))


def _write_entries(
    transaction: Transaction,
    thread: ThreadRow,
    known: Known,
    head: Entry | None,
    entries: Sequence[Entry],
) -> None:
    last = last_of(head, pack_id(head.id)) if head else None
    for entry in entries:
        number = _origin(transaction, thread, known, (entry.run_id, entry.fingerprint))
        parent = pack_parent(entry)
        prior = last[2] if last and entry.kind == ROLLUP else None
        row = entry_row(entry, thread.id, number, parent, prior)
        transaction.run("put_entry", (*row, None if last and parent == last[1] else parent))
        last = last_of(entry, row[1])
    known.last = last
    if known.has_results and not all(entry.source in HOLDING for entry in entries):
        transaction.run("drop_results", (thread.origin, thread.last))
        known.has_results = False


def _origin(transaction: Transaction, thread: ThreadRow, known: Known, origin: RunAndGraph) -> int:
    """The number of an origin; the newest is looked at, any other is written again."""
    number = known.numbers.get(origin)
    if number is not None:
        return number
    newest = None
    if not thread.is_new or known.numbers:
        newest = transaction.one("newest_origin", (thread.origin, thread.last))
    number = 0
    if newest is not None:
        with transaction.reading(f"origins, thread '{thread.key}'"):
            id, run_id, fingerprint = checked(newest)
            number = int(id % SPAN)
        if (read_text(run_id), read_text(fingerprint)) == origin:
            known.note(number, origin)
            return number
    number += 1
    values = thread.origin + number, write_text(origin[0]), write_text(origin[1])
    transaction.run("put_origin", summed(values))
    known.note(number, origin)
    return number


def _write_results(transaction: Transaction, thread: ThreadRow, known: Known, batch: Batch) -> None:
    if not batch.results:
        return
    head = batch.head + len(batch.entries)
    last = thread.origin + ThreadLog(transaction, thread, known).drop_dead_results(head)
    rows = [result_row(id, head, result) for id, result in enumerate(batch.results, last + 1)]
    transaction.run_each("put_result", rows)
    known.has_results = True


def _write_records(transaction: Transaction, thread: ThreadRow, batch: Batch) -> None:
    """Write run records and a failure, and the thread's line in the index if it changes."""
    changed, runs, failure = thread, batch.runs, batch.failure
    if failure is not None:
        added = not thread.failures or transaction.failure(thread, failure.run_id) is None
        transaction.run("put_failure", failure_row(thread.id, failure))
        changed = msgspec.structs.replace(changed, failures=thread.failures + added)
    for run in runs:
        changed = _write_run(transaction, changed, run)
    info = batch.thread or changed.info or (ThreadInfo.of(runs[-1]) if runs else None)
    changed = msgspec.structs.replace(changed, info=info)
    if thread.is_new or changed != thread:
        put_thread(transaction, changed)
    if batch.dequeues is not None:
        transaction.run("drop_input", (thread.origin, thread.last, write_text(batch.dequeues)))
    if batch.tags is not None and info is not None:
        _write_tags(transaction, thread, batch.tags)
    if batch.thread is not None or info is not thread.info:
        transaction.run("move_thread", (thread.key.tenant, thread.id))


def _write_tags(transaction: Transaction, thread: ThreadRow, change: TagChange) -> None:
    tenant, name = thread.key.tenant, thread.key.thread
    transaction.run_each("drop_tag", [(tenant, tag, name) for tag in change.remove])
    transaction.run_each("put_tag", [summed((tenant, tag, name, thread.id)) for tag in change.add])


def _write_run(transaction: Transaction, thread: ThreadRow, run: RunRecord) -> ThreadRow:
    """Write a record; return the thread with its runs."""
    added = not thread.runs or transaction.run_record(thread, run.run_id) is None
    tenant = thread.key.tenant
    transaction.run("put_run", (*run_row(thread.id, run), thread.runs + 1, tenant, tenant))
    return msgspec.structs.replace(thread, runs=thread.runs + added)
