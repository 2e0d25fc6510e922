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
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.ports.store import Batch
from milecastle.stores.sqlite.log import Known, Log
from milecastle.stores.sqlite.rows import (
    SPAN,
    Origin,
    ThreadRow,
    checked,
    entry_row,
    failure_row,
    pack_id,
    read_text,
    result_row,
    run_row,
    summed,
    thread_values,
    write_text,
)
from milecastle.stores.sqlite.view import View

__all__ = ["delete_thread", "prune_thread", "write_batch"]


def write_batch(view: View, batch: Batch, known: Known | None) -> Known | None:
    """Append a batch, or raise ``Conflict``. What is known of the thread afterwards."""
    thread = view.thread(batch.key)
    now = Known(thread.id) if thread else None
    if known and thread and known.id == thread.id:
        now = msgspec.structs.replace(known, origins={**known.origins}, numbers={**known.numbers})
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
        _write_results(view, thread, now, batch)
        _write_runs(view, thread, batch.runs, batch.failure)
    if batch.manifest is not None:
        fingerprint, manifest = batch.manifest
        values = batch.key.tenant, write_text(fingerprint), manifest
        view.run("put_manifest", summed(values))
    return now


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
            view.run("replace_entry", entry_row(entry, thread.id, number))
    if cut <= thread.first:
        return 0
    Log(view, thread, known).drop_dead_results(head)
    view.run("keep_parent", (thread.origin + cut, thread.origin + cut))
    dropped = view.run("drop_entries", (thread.origin + 1, thread.origin + cut - 1))
    _put_thread(view, msgspec.structs.replace(thread, first=cut))
    return dropped


def delete_thread(view: View, key: ThreadKey) -> bool:
    """Remove a thread and everything of it."""
    thread = view.thread(key)
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


def conflict(key: ThreadKey, expected: int, head: int) -> Conflict:
    """The refusal of a writer that was overtaken."""
    return Conflict(tenant=key.tenant, thread=key.thread, expected=expected, head=head)


def _rests_on(before: Entry) -> int:
    """Where the chain of a rollup goes on, given the entry before it."""
    return before.roll_seq if before.kind == DELTA else before.seq


def _check_fence(batch: Batch, head: Entry | None) -> None:
    newest = head.seq if head else 0
    if batch.head != newest:
        raise conflict(batch.key, batch.head + 1, newest)
    before = head.id if head else None
    for seq, entry in enumerate(batch.entries, newest + 1):
        if entry.seq != seq or (entry.kind != SNAPSHOT and entry.parent_id != before):
            raise conflict(batch.key, entry.seq, newest)
        before = entry.id


def _begin(view: View, key: ThreadKey) -> ThreadRow:
    view.run("new_thread", (key.tenant, key.thread))
    thread = ThreadRow(id=view.cursor.lastrowid or 0, key=key)
    _put_thread(view, thread)
    return thread


def _put_thread(view: View, thread: ThreadRow) -> None:
    values = summed(thread_values(thread))
    view.run("put_thread", (*values[3:], thread.id))


def _write_entries(
    view: View, thread: ThreadRow, known: Known, before: Entry | None, entries: Sequence[Entry]
) -> None:
    for entry in entries:
        number = _origin(view, thread, known, (entry.run_id, entry.fingerprint))
        prior = _rests_on(before) if before and entry.kind == ROLLUP else None
        row = entry_row(entry, thread.id, number, prior)
        if before is not None and row[2] == pack_id(before.id):
            row[2] = None
        view.run("put_entry", row)
        before = entry
    ends_results = any(entry.source != "takeover" for entry in entries)
    if ends_results and known.has_results:
        view.run("drop_results", (thread.origin, thread.last))
        known.has_results = False


def _origin(view: View, thread: ThreadRow, known: Known, origin: Origin) -> int:
    """The number of an origin; the newest is looked at, any other is written again."""
    number = known.numbers.get(origin)
    if number is not None:
        return number
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
    for id, result in enumerate(batch.results, last + 1):
        view.run("put_result", result_row(id, head, result))
    known.has_results = True


def _write_runs(
    view: View, thread: ThreadRow, runs: Sequence[RunRecord], failure: Failure | None
) -> None:
    """Write records, and keep the index of threads in step with them."""
    changed = thread
    if failure is not None:
        added = view.failure(thread, failure.run_id) is None
        view.run("put_failure", failure_row(thread.id, failure))
        changed = msgspec.structs.replace(changed, failures=thread.failures + added)
    for run in runs:
        added = view.run_record(changed, run.run_id) is None
        view.run("put_run", run_row(thread.id, run))
        changed = msgspec.structs.replace(changed, runs=changed.runs + added)
    newest = view.newest_run(changed) if runs else None
    if newest is not None:
        changed = msgspec.structs.replace(
            changed, status=newest.status, started_at=newest.started_at, run_id=newest.run_id
        )
    if changed != thread:
        _put_thread(view, changed)
