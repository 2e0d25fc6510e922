"""Checkpoints as documents: one with its state, and the difference between two."""

from __future__ import annotations

from milecastle.app.runtime.difference import Change, difference
from milecastle.app.runtime.ownership import why_lost
from milecastle.app.runtime.tagging import tags_at
from milecastle.engine.status import thread_info
from milecastle.engine.tasks import outcome_row, task_id
from milecastle.model.checkpoint import CheckpointMetadata, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Chain, Store
from milecastle.views.decoding import Decoded
from milecastle.views.documents import ChangeLine, ShowDocument, TaskLine
from milecastle.views.lines import checkpoint_line, question_lines, run_line
from milecastle.views.values import plain

__all__ = ["change_line", "changes_between", "ended_tasks", "show_document"]


def show_document(store: Store, key: ThreadKey, chain: Chain, decoded: Decoded) -> ShowDocument:
    """The checkpoint at the end of a chain, its run and its state."""
    entry = chain.entries[-1]
    run = store.run(key, entry.run_id)
    status = thread_info(entry, run, decoded.waits).status if run else "-"
    reason = why_lost(store, run) if run and status == "running" else ""
    return ShowDocument(
        tenant=key.tenant,
        thread=key.thread,
        checkpoint=checkpoint_line(CheckpointMetadata.of(key, entry)),
        status="lost" if reason else status,
        reason=reason,
        run=run_line(run, store.failure(key, run.run_id)) if run else None,
        state=plain(decoded.values),
        questions=question_lines(decoded.interrupts),
        undecoded=decoded.undecoded,
        tasks=_task_lines(store, key, entry.seq, decoded),
        tags=tags_at(store, key),
    )


def _task_lines(store: Store, key: ThreadKey, seq: int, decoded: Decoded) -> tuple[TaskLine, ...]:
    """The tasks of a step with several tasks, if it is current or next."""
    newest = store.head(key)
    if newest is None or newest.seq != seq or sum(decoded.tasks.values()) < 2:
        return ()
    return tuple(
        TaskLine(node=node, done=ended_tasks(store, key, newest, node), total=total)
        for node, total in decoded.tasks.items()
    )


def ended_tasks(store: Store, key: ThreadKey, head: Entry, node: str) -> int:
    """How many tasks of a node have ended in the step after the head."""
    return store.count_results(key, outcome_row(head.step + 1, task_id(node)))


def changes_between(old: Decoded, new: Decoded) -> tuple[list[Change], dict[str, str]]:
    """What differs, and the channels that cannot be read and so are not compared."""
    unread = {**old.undecoded, **new.undecoded}
    before, after = (
        {name: value for name, value in side.values.items() if name not in unread}
        for side in (old, new)
    )
    return difference(before, after), unread


def change_line(change: Change) -> ChangeLine:
    """A difference as JSON."""
    return ChangeLine(
        path=change.path, kind=change.kind, old=plain(change.old), new=plain(change.new)
    )
