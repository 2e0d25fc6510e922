from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec.structs

from milecastle.app.runs.ownership import why_lost
from milecastle.app.threads.difference import Change, difference
from milecastle.app.threads.reading import running_now
from milecastle.app.threads.tagging import tags_at
from milecastle.engine.status import claimed_run, thread_info
from milecastle.engine.tasks import outcome_row, task_id
from milecastle.errors import EncryptionError
from milecastle.model.checkpoint import CheckpointMetadata, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.reading import StoreReader
from milecastle.ports.store import Chain, Store
from milecastle.views.decoding import Decoded
from milecastle.views.documents import ChangeLine, RunLine, ShowDocument, TaskLine
from milecastle.views.lines import checkpoint_line, question_lines, run_line
from milecastle.views.values import plain


class Shown(NamedTuple):
    chain: Chain
    run: RunRecord | None


def read_shown(store: Store, key: ThreadKey, seq: int | None = None) -> Shown | None:
    """A checkpoint's data for display; the head and its run record are read together."""
    chain = store.read_state(key, seq)
    if chain is None:
        return None
    entry = chain.entries[-1]
    run = store.run(key, entry.run_id)
    head = store.head(key) if seq is None else entry
    if head is not None and head.id == entry.id:
        return Shown(chain, run)
    found = store.open(key)  # it went on between the reads
    return Shown(*found) if found else None


def show_document(store: Store, key: ThreadKey, shown: Shown, decoded: Decoded) -> ShowDocument:
    entry, run = shown.chain.entries[-1], shown.run
    status, next = "-", entry.next or entry.route
    if run is not None:
        status, next = running_now(store, key, entry, thread_info(entry, run, decoded.waits).status)
    reason = why_lost(store, run) if run and status == "running" else ""
    line = checkpoint_line(CheckpointMetadata.of(key, entry))
    return ShowDocument(
        tenant=key.tenant,
        thread=key.thread,
        checkpoint=msgspec.structs.replace(line, next=next),
        status="lost" if reason else status,
        reason=reason,
        run=run_lines(store, [run])[0] if run else None,
        state=plain(decoded.values),
        questions=question_lines(decoded.interrupts),
        undecoded=decoded.undecoded,
        tasks=_task_lines(store, key, entry.seq, decoded),
        tags=tags_at(store, key),
    )


def readable_document(
    store: Store,
    info: ThreadInfo,
    shown: Shown,
    read: Callable[[ThreadKey, Chain], Decoded],
    *,
    is_head: bool,
) -> ShowDocument:
    """``show_document`` with the state if it can be decrypted, and otherwise the reason."""
    try:
        decoded = read(info.key, shown.chain)
    except EncryptionError as error:
        found = show_document(store, info.key, shown, Decoded({}, {"$": error.message}))
        status = info.status if is_head else found.status
        return msgspec.structs.replace(found, state=None, status=status)
    return show_document(store, info.key, shown, decoded)


def run_lines(store: StoreReader, runs: Iterable[RunRecord]) -> list[RunLine]:
    lines: list[RunLine] = []
    for run in runs:
        may_be_claimed = run.status in ("queued", "interrupted", "sleeping")
        info = store.thread(run.key) if may_be_claimed else None
        shown = run if info is None else claimed_run(run, info)
        lines.append(run_line(shown, store.failure(run.key, run.run_id)))
    return lines


def _task_lines(store: Store, key: ThreadKey, seq: int, decoded: Decoded) -> tuple[TaskLine, ...]:
    newest = store.head(key)
    if newest is None or newest.seq != seq or sum(decoded.tasks.values()) < 2:
        return ()
    return tuple(
        TaskLine(node=node, done=ended_tasks(store, key, newest, node), total=total)
        for node, total in decoded.tasks.items()
    )


def ended_tasks(store: Store, key: ThreadKey, head: Entry, node: str) -> int:
    return store.count_results(key, outcome_row(head.step + 1, task_id(node)))


def changes_between(old: Decoded, new: Decoded) -> tuple[list[Change], dict[str, str]]:
    unread = {**old.undecoded, **new.undecoded}
    before, after = (
        {name: value for name, value in side.values.items() if name not in unread}
        for side in (old, new)
    )
    return difference(before, after), unread


def change_line(change: Change) -> ChangeLine:
    return ChangeLine(
        path=change.path, kind=change.kind, old=plain(change.old), new=plain(change.new)
    )
