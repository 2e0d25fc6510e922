"""Checkpoints as documents: one with its state, and the difference between two."""

from __future__ import annotations

from milecastle.app.runtime.difference import Change, difference
from milecastle.app.runtime.ownership import why_lost
from milecastle.engine.status import thread_info
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Chain, Store
from milecastle.views.decoding import Decoded
from milecastle.views.documents import ChangeLine, ShowDocument, TaskLine
from milecastle.views.lines import checkpoint_line, question_lines, run_line
from milecastle.views.values import plain

__all__ = ["change_line", "changes_between", "show_document"]


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
    )


def _task_lines(store: Store, key: ThreadKey, seq: int, decoded: Decoded) -> tuple[TaskLine, ...]:
    """The tasks of a step with several tasks, if it is current or next."""
    newest = store.head(key)
    several = sum(total for _, _, total in decoded.tasks) > 1
    if newest is None or newest.seq != seq or not several:
        return ()
    return tuple(TaskLine(node=node, done=done, total=total) for node, done, total in decoded.tasks)


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
