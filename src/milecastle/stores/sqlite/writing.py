"""What is written: batches, prunings and deletions, each inside one transaction.

Rules:

- Everything is checked before anything is written.
- A delta or a rollup rests on the head: its parent must be the head's checkpoint. So a writer of
  a thread that was deleted and begun anew is refused, though the new one has the same head.
- The newest run stands in the index of threads, which changes on transitions and not on steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec.structs

from milecastle.errors import Conflict, InvalidRequest
from milecastle.model.checkpoint import DELTA, HOLDING, ROLLUP, SNAPSHOT, Entry
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.ports.store import Batch
from milecastle.stores.sqlite.log import Known, Last, Log
from milecastle.stores.sqlite.rows import (
    SPAN,
    Origin,
    Row,
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
from milecastle.stores.sqlite.view import View

__all__ = [
    "delete_thread",
    "is_plain",
    "last_of",
    "prune_thread",
    "step_row",
    "write_batch",
]


def is_plain(batch: Batch) -> bool:
    """Whether a batch is nothing but one entry."""
    return not (
        len(batch.entries) != 1 or batch.runs or batch.results or batch.failure or batch.manifest
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


def write_batch(view: View, batch: Batch, known: Known | None) -> Known | None:
    """Append a batch, or raise ``Conflict``. What is known of the thread afterwards."""
    row = step_row(batch, known) if known else None
    if known is not None and row is not None and view.insert("append", row):
        moved = known.with_last(last_of(batch.entries[0], row[1]))
        if not is_plain(batch):
            _write_rest(view, view.thread(batch.key), moved, batch)
        return moved
    thread = view.thread(batch.key)
    now = _fresh(known, thread)
    head = Log(view, thread, now).newest() if thread and now else None
    _check_fence(batch, head)
    if known and batch.head and thread and known.id != thread.id:
        # The thread was begun anew since this store last looked; so the writer has not either.
        raise conflict(batch.key, batch.head + 1, head.seq if head else 0)
    if thread is None and (batch.entries or batch.results or batch.runs or batch.failure):
        thread = _begin(view, batch.key)
        now = Known(thread.id)
    if thread and now:
        _write_entries(view, thread, now, head, batch.entries)
    _write_rest(view, thread, now, batch)
    return now


def _fresh(known: Known | None, thread: ThreadRow | None) -> Known | None:
    """What is known of the thread, to be changed; nothing if it is another one now."""
    if thread is None:
        return None
    if known is None or known.id != thread.id:
        return Known(thread.id)
    return msgspec.structs.replace(known, origins={**known.origins}, numbers={**known.numbers})


def _write_rest(view: View, thread: ThreadRow | None, known: Known | None, batch: Batch) -> None:
    """Write what is no entry."""
    if thread and known:
        _write_results(view, thread, known, batch)
        _write_runs(view, thread, batch.runs, batch.failure)
    if batch.manifest is not None:
        fingerprint, manifest = batch.manifest
        values = batch.key.tenant, write_text(fingerprint), manifest
        view.run("put_manifest", summed(values))


def prune_thread(
    view: View, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]
) -> int:
    """Replace some entries by snapshots and drop what is below ``cut``."""
    thread = view.thread(key)
    known = Known(thread.id if thread else 0)
    newest = Log(view, thread, known).newest() if thread else None
    if (newest.seq if newest else 0) != head:
        raise conflict(key, head, newest.seq if newest else 0)
    limit = newest.roll_seq if newest else 0
    if max([cut, *(entry.seq for entry in rewritten)]) > limit:
        raise InvalidRequest(
            f"thread '{key.thread}' cannot be pruned above seq {limit}: "
            "its writer may still roll up what is there"
        )
    if thread is None:
        return 0
    for entry in rewritten:
        if entry.seq >= max(cut, thread.first):
            number = _origin(view, thread, known, (entry.run_id, entry.fingerprint))
            parent = pack_parent(entry)
            row = entry_row(entry, thread.id, number, parent)
            view.run("replace_entry", (*row, parent))
    if cut <= thread.first:
        return 0
    Log(view, thread, known).drop_dead_results(head)
    view.run("keep_parent", (thread.origin + cut, thread.origin + cut))
    dropped = view.run("drop_entries", (thread.origin + 1, thread.origin + cut - 1))
    _put_thread(view, msgspec.structs.replace(thread, first=cut))
    return dropped


def delete_thread(view: View, key: ThreadKey, head: int | None) -> bool:
    """Remove a thread and everything of it; with ``head``, only if that is its head."""
    thread = view.thread(key)
    if head is not None:
        newest = Log(view, thread, Known(thread.id)).newest() if thread else None
        if head != (newest.seq if newest else 0):
            raise conflict(key, head, newest.seq if newest else 0)
    if thread is None:
        return False
    found = 0
    for name in ("drop_results", "drop_origins"):
        view.run(name, (thread.origin, thread.last))
    view.run("drop_failures", (thread.id,))
    found += view.run("drop_runs", (thread.id,))
    found += view.run("drop_entries", (thread.origin, thread.last))
    view.run("drop_thread", (thread.id,))
    return found > 0


def last_of(entry: Entry, packed: str | bytes) -> Last:
    """What is remembered of an entry that was written. The chain of a rollup goes on below it."""
    return entry.id, packed, entry.roll_seq if entry.kind == DELTA else entry.seq


def conflict(key: ThreadKey, expected: int, head: int) -> Conflict:
    """The refusal of a writer that was overtaken."""
    return Conflict(tenant=key.tenant, thread=key.thread, expected=expected, head=head)


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


def _begin(view: View, key: ThreadKey) -> ThreadRow:
    """A new thread. Its row is not complete before ``_write_runs`` has put it."""
    view.run("new_thread", (key.tenant, key.thread))
    return ThreadRow(id=view.cursor.lastrowid or 0, key=key, is_new=True)


def _put_thread(view: View, thread: ThreadRow) -> None:
    values = summed(thread_values(thread))
    view.run("put_thread", (*values[3:], thread.id))


def _write_entries(
    view: View, thread: ThreadRow, known: Known, head: Entry | None, entries: Sequence[Entry]
) -> None:
    last = last_of(head, pack_id(head.id)) if head else None
    for entry in entries:
        number = _origin(view, thread, known, (entry.run_id, entry.fingerprint))
        parent = pack_parent(entry)
        prior = last[2] if last and entry.kind == ROLLUP else None
        row = entry_row(entry, thread.id, number, parent, prior)
        view.run("put_entry", (*row, None if last and parent == last[1] else parent))
        last = last_of(entry, row[1])
    known.last = last
    if known.has_results and not all(entry.source in HOLDING for entry in entries):
        view.run("drop_results", (thread.origin, thread.last))
        known.has_results = False


def _origin(view: View, thread: ThreadRow, known: Known, origin: Origin) -> int:
    """The number of an origin; the newest is looked at, any other is written again."""
    number = known.numbers.get(origin)
    if number is not None:
        return number
    newest = None
    if not thread.is_new or known.numbers:
        newest = view.one("newest_origin", (thread.origin, thread.last))
    number = 0
    if newest is not None:
        with view.reading(f"origins, thread '{thread.key}'"):
            id, run_id, fingerprint = checked(newest)
            number = int(id % SPAN)
        if (read_text(run_id), read_text(fingerprint)) == origin:
            known.note(number, origin)
            return number
    number += 1
    values = thread.origin + number, write_text(origin[0]), write_text(origin[1])
    view.run("put_origin", summed(values))
    known.note(number, origin)
    return number


def _write_results(view: View, thread: ThreadRow, known: Known, batch: Batch) -> None:
    if not batch.results:
        return
    head = batch.head + len(batch.entries)
    last = thread.origin + Log(view, thread, known).drop_dead_results(head)
    rows = [result_row(id, head, result) for id, result in enumerate(batch.results, last + 1)]
    view.run_each("put_result", rows)
    known.has_results = True


def _write_runs(
    view: View, thread: ThreadRow, runs: Sequence[RunRecord], failure: Failure | None
) -> None:
    """Write records, and keep the index of threads in step with them."""
    changed = thread
    if failure is not None:
        added = not thread.failures or view.failure(thread, failure.run_id) is None
        view.run("put_failure", failure_row(thread.id, failure))
        changed = msgspec.structs.replace(changed, failures=thread.failures + added)
    for run in runs:
        changed = _write_run(view, changed, run)
    if thread.is_new or changed != thread:
        _put_thread(view, changed)


def _write_run(view: View, thread: ThreadRow, run: RunRecord) -> ThreadRow:
    """Write a record; the index as it has to be now. Mostly it is the newest run's."""
    is_newest = run.run_id == thread.run_id and run.started_at == thread.started_at
    added = not is_newest and (not thread.runs or view.run_record(thread, run.run_id) is None)
    view.run("put_run", run_row(thread.id, run))
    newest: RunRecord | None = run
    if not is_newest and thread.runs:
        newest = view.newest_run(thread)
    if newest is None:
        raise view.damage("a run is missing", f"runs, thread '{thread.key}'")
    return msgspec.structs.replace(
        thread,
        runs=thread.runs + added,
        status=newest.status,
        started_at=newest.started_at,
        run_id=newest.run_id,
    )
