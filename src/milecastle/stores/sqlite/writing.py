"""Writing: batches, prunings and deletions, each inside one transaction.

Rules:

- Everything is checked before anything is written.
- A delta or a rollup builds on the head: its parent must be the head's checkpoint. So a writer to
  a thread deleted and created again is refused, though the new one has the same head.
- The thread index changes on transitions and not on steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec.structs

from milecastle.model.checkpoint import DELTA, HOLDING, ROLLUP, SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.fencing import (
    check_cut,
    check_oldest,
    conflict,
    input_known,
    message_gone,
    message_waits,
)
from milecastle.ports.store import Batch
from milecastle.stores.sqlite.log import KIND, ROLL, Known, LastEntry, ThreadLog
from milecastle.stores.sqlite.messages import (
    is_kept,
    unread_and_count,
    unread_rows,
    write_consumed,
)
from milecastle.stores.sqlite.rows import (
    SPAN,
    Row,
    RunAndGraph,
    ThreadRow,
    entry_row,
    failure_row,
    pack_parent,
    read_text,
    result_row,
    run_row,
    summed,
    thread_values,
    write_text,
)
from milecastle.stores.sqlite.transaction import Lookup, Transaction


def is_plain(batch: Batch) -> bool:
    return not (
        len(batch.entries) != 1
        or batch.runs
        or batch.results
        or batch.failure
        or batch.manifest
        or batch.thread
    )


def step_row(batch: Batch, known: Known) -> Row | None:
    """``append``'s arguments for a batch's only entry; ``None`` if that is not enough.

    The entry must follow the one known to be the last, and end no results.
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


def append_alone(transaction: Transaction, batch: Batch, known: Known) -> Known | None:
    """Append a step by one statement, and consume its messages; ``None`` if that is not enough.

    Then nothing was written.
    """
    row = step_row(batch, known)
    if row is None:
        return None
    found: tuple[list[Row], Row] | None = ([], ())
    if batch.consumes:
        found = unread_and_count(transaction, known.id, batch)
    if found is None or not transaction.insert("append", row):
        return None
    if batch.consumes:
        write_consumed(transaction, found[0], batch.entries[0].seq)
        transaction.run("count_messages", found[1])
    return known.with_last(last_of(batch.entries[0], row[1]))


def write_batch(
    transaction: Transaction, found: Lookup, batch: Batch, known: Known | None
) -> Known | None:
    """Append a batch, or raise ``Conflict``. Return the thread's known data afterwards."""
    thread = found.thread
    _check_fence(batch, found)
    if known and batch.head and thread and known.id != thread.id:
        # The thread was created again since this store last read it; so the writer is outdated too.
        raise conflict(batch.key, batch.head + 1, found.seq)
    if batch.unless is not None and thread and transaction.run_of_input(thread, batch.unless):
        raise input_known(batch.key, batch.head)
    consumed = unread_rows(transaction, thread, batch.consumes) if batch.consumes else ()
    if consumed is None:
        raise message_gone(batch.key, batch.head)
    if thread is None and (
        batch.entries or batch.results or batch.runs or batch.failure or batch.thread
    ):
        thread = ThreadRow(id=found.number, key=batch.key, is_new=True)
    now = _fresh(known, thread)
    if thread and now:
        _write_entries(transaction, thread, now, found, batch.entries)
        if batch.results:
            _write_results(transaction, thread, now, batch)
        if consumed:
            write_consumed(transaction, consumed, batch.head + len(batch.entries))
        _write_records(transaction, thread, found, batch)
    if batch.manifest is not None:
        fingerprint, manifest = batch.manifest
        transaction.run("put_manifest", summed((batch.key.tenant, fingerprint, manifest)))
    return now


def _fresh(known: Known | None, thread: ThreadRow | None) -> Known | None:
    if thread is None:
        return None
    if known is None or known.id != thread.id:
        return Known(thread.id)
    return msgspec.structs.replace(known, origins={**known.origins}, numbers={**known.numbers})


def prune_thread(
    transaction: Transaction,
    key: ThreadKey,
    *,
    head: int,
    cut: int,
    rewritten: Sequence[Entry],
    oldest: Entry | None,
    archived: bool,
) -> int:
    found = transaction.look(key)
    thread = found.thread
    if found.seq != head:
        raise conflict(key, head, found.seq)
    check_cut(key, found.head[ROLL] if found.head else 0, cut, rewritten)
    if thread is None:
        return 0
    known = Known(thread.id)
    log = ThreadLog(transaction, thread, known)
    if oldest is not None:
        check_oldest(key, head, oldest, log.entry(thread.first))
    for entry in rewritten:
        if entry.seq >= max(cut, thread.first):
            number = _origin(transaction, thread, known, found, (entry.run_id, entry.fingerprint))
            parent = pack_parent(entry)
            row = entry_row(entry, thread.id, number, parent)
            transaction.run("replace_entry", (*row, parent))
    if cut <= thread.first:
        return 0
    log.drop_dead_results(head)
    transaction.run("keep_parent", (thread.origin + cut, thread.origin + cut))
    dropped = transaction.run("drop_entries", (thread.origin + 1, thread.origin + cut - 1))
    if thread.messages and not archived:
        transaction.run("drop_consumed", (thread.origin, thread.last, cut))
    put_thread(transaction, msgspec.structs.replace(thread, first=cut))
    return dropped


def put_entries_back(
    transaction: Transaction,
    key: ThreadKey,
    *,
    head: int,
    oldest: Entry,
    entries: Sequence[Entry],
) -> None:
    found = transaction.look(key)
    thread = found.thread
    if found.seq != head or thread is None:
        raise conflict(key, head, found.seq)
    known = Known(thread.id)
    log = ThreadLog(transaction, thread, known)
    check_oldest(key, head, oldest, log.entry(thread.first))
    rolled = None
    for entry in entries:
        number = _origin(transaction, thread, known, found, (entry.run_id, entry.fingerprint))
        parent = pack_parent(entry)
        prior = rolled if entry.kind == ROLLUP else None
        row = entry_row(entry, thread.id, number, parent, prior)
        transaction.run("replace_entry", (*row, parent))
        rolled = last_of(entry, b"")[2]
    put_thread(transaction, msgspec.structs.replace(thread, first=entries[0].seq))


def delete_thread(
    transaction: Transaction, key: ThreadKey, head: int | None, head_id: str | None
) -> bool:
    found = transaction.look(key)
    thread = found.thread
    if head is not None or head_id is not None:
        if head not in (None, found.seq):
            raise conflict(key, head or 0, found.seq)
        if head_id not in (None, found.id):
            raise conflict(key, found.seq + 1, found.seq)
        if thread and is_kept(transaction, thread):
            raise message_waits(key, found.seq)
    if thread is None:
        return False
    dropped = 0
    for name in ("drop_results", "drop_origins", "drop_messages"):
        transaction.run(name, (thread.origin, thread.last))
    transaction.run("drop_failures", (thread.id,))
    transaction.run("drop_tags", (thread.id,))
    dropped += transaction.run("drop_runs", (thread.id,))
    dropped += transaction.run("drop_entries", (thread.origin, thread.last))
    transaction.run("drop_thread", (thread.id,))
    return dropped > 0


def last_of(entry: Entry, packed: str | bytes) -> LastEntry:
    return entry.id, packed, entry.roll_seq if entry.kind == DELTA else entry.seq


def _check_fence(batch: Batch, found: Lookup) -> None:
    newest, before = found.seq, found.id
    if batch.head != newest:
        raise conflict(batch.key, batch.head + 1, newest)
    if batch.head_id not in (None, before):
        raise conflict(batch.key, newest + 1, newest)
    for seq, entry in enumerate(batch.entries, newest + 1):
        if entry.seq != seq or (entry.kind != SNAPSHOT and entry.parent_id != before):
            raise conflict(batch.key, entry.seq, newest)
        before = entry.id


def put_thread(transaction: Transaction, thread: ThreadRow, *, moves: bool = False) -> None:
    """Write a thread's row in the index, with its checksum.

    If it moves, it becomes the tenant's last thread by change.
    """
    values = summed(thread_values(thread))
    tenant = thread.key.tenant
    if thread.is_new:
        transaction.run("new_thread", (*values, tenant))
    else:
        transaction.run("put_thread", (*values[3:], tenant if moves else None, tenant, thread.id))


def count_messages(transaction: Transaction, thread: ThreadRow) -> None:
    sum = summed(thread_values(thread))[-1]
    transaction.run("count_messages", (thread.messages, thread.unread, sum, thread.id))


def _write_entries(
    transaction: Transaction,
    thread: ThreadRow,
    known: Known,
    found: Lookup,
    entries: Sequence[Entry],
) -> None:
    head, last = found.head, None
    if head:
        last = found.id or "", head[1], head[ROLL] if head[KIND] == DELTA else found.seq
    for entry in entries:
        number = _origin(transaction, thread, known, found, (entry.run_id, entry.fingerprint))
        parent = pack_parent(entry)
        prior = last[2] if last and entry.kind == ROLLUP else None
        row = entry_row(entry, thread.id, number, parent, prior)
        transaction.run("put_entry", (*row, None if last and parent == last[1] else parent))
        last = last_of(entry, row[1])
    known.last = last
    if known.has_results and not all(entry.source in HOLDING for entry in entries):
        transaction.run("drop_results", (thread.origin, thread.last))
        known.has_results = False


def _origin(
    transaction: Transaction, thread: ThreadRow, known: Known, found: Lookup, origin: RunAndGraph
) -> int:
    number = known.numbers.get(origin)
    if number is not None:
        return number
    number = 0
    if found.origin is not None:
        id, run_id, fingerprint = found.origin
        number = int(id % SPAN)
        if (read_text(run_id), read_text(fingerprint)) == origin:
            known.note(number, origin)
            return number
    number += 1
    found.origin = thread.origin + number, *origin
    transaction.run("put_origin", summed(found.origin))
    known.note(number, origin)
    return number


def _write_results(transaction: Transaction, thread: ThreadRow, known: Known, batch: Batch) -> None:
    head = batch.head + len(batch.entries)
    last = 0 if thread.is_new else ThreadLog(transaction, thread, known).drop_dead_results(head)
    first = thread.origin + last + 1
    rows = [result_row(id, head, result) for id, result in enumerate(batch.results, first)]
    transaction.run_each("put_result", rows)
    known.has_results = True


def _write_records(
    transaction: Transaction, thread: ThreadRow, found: Lookup, batch: Batch
) -> None:
    tenant, number, failures = thread.key.tenant, thread.runs, thread.failures
    if batch.failure is not None:
        run_id = batch.failure.run_id
        added = not failures or transaction.failure(thread, run_id) is None
        transaction.run("put_failure", failure_row(thread.id, batch.failure))
        failures += added
    for run in batch.runs:
        is_known = found.run is not None
        if len(batch.runs) > 1:
            key = thread.id, write_text(run.run_id)
            is_known = transaction.one("run_number", key) is not None
        transaction.run("put_run", (*run_row(thread.id, run), number + 1, tenant, tenant))
        number += not is_known
    info = batch.thread or thread.info or (ThreadInfo.of(batch.runs[-1]) if batch.runs else None)
    unread = thread.unread - len({*batch.consumes})
    changed = msgspec.structs.replace(
        thread, runs=number, failures=failures, info=info, unread=unread
    )
    moves = batch.thread is not None or info is not thread.info
    if moves or thread.is_new or (number, failures) != (thread.runs, thread.failures):
        put_thread(transaction, changed, moves=moves)
    elif batch.consumes:
        count_messages(transaction, changed)
    if batch.tags is not None and info is not None:
        _write_tags(transaction, thread, batch.tags)


def _write_tags(transaction: Transaction, thread: ThreadRow, change: TagChange) -> None:
    tenant, name = thread.key.tenant, thread.key.thread
    transaction.run_each("drop_tag", [(tenant, tag, name) for tag in change.remove])
    transaction.run_each("put_tag", [summed((tenant, tag, name, thread.id)) for tag in change.add])
