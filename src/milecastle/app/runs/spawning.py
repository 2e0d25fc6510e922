"""Children: runs a node starts on its store's other threads, under names it can repeat.

A child is submitted once, whatever crashes: a node that runs again finds it by its name, and the
run record says which call spawned it. A thread that another call started is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from milecastle.app.runs.calls import Call
from milecastle.app.threads.children import every_thread
from milecastle.app.threads.closing import FROM_OUTSIDE
from milecastle.app.threads.messages import require_mailbox
from milecastle.codec.answers import as_plain
from milecastle.codec.deltas import LogCodec
from milecastle.codec.messages import seal_message
from milecastle.errors import InvalidRequest, MailboxFull, MilecastleError
from milecastle.model.children import Parent, child_topic, parent_tag
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store, offers
from milecastle.ports.task import NewChild

_LONGEST_FAILURE: Final = 10_000
"""Characters of an error that are sent to the parent: a message has a limit."""


def child_calls(
    parent: ThreadKey, run_id: str, children: Sequence[NewChild], config: Any
) -> list[Call]:
    """Calls that submit children; those without their own config have ``config``."""
    return [
        Call(
            input=child.input,
            thread=ThreadKey(parent.tenant, child.thread),
            config=config if child.config is None else child.config,
            if_exists="keep",
            is_own=child.is_own,
            tags=(parent_tag(parent.thread),),
            parent=Parent(parent.thread, run_id, child.call, child.stays),
        )
        for child in children
    ]


def refuse_taken(store: Store, call: Call) -> None:
    for run in store.runs(call.thread):
        found = Parent.of(run)
        if found and call.parent and found.call == call.parent.call:
            return
    raise InvalidRequest(
        f"thread '{call.thread.thread}' exists, and is no child of this call: spawn the child "
        "under another name, or without one"
    )


def may_have_children(store: Store) -> bool:
    return offers(store, ClaimStore) and store.tags is not None and store.mailbox is not None


def spawned_by(store: Store, parent: ThreadKey) -> Iterator[ThreadInfo]:
    if not may_have_children(store):
        return
    for info in every_thread(store, parent.tenant, tag=parent_tag(parent.thread)):
        if is_cancelled_with(store.run(info.key, info.run_id), parent):
            yield info


def is_cancelled_with(record: RunRecord | None, parent: ThreadKey) -> bool:
    found = Parent.of(record)
    return found is not None and found.thread == parent.thread and not found.stays


def is_orphaned(store: Store, record: RunRecord) -> bool:
    """True if a run was spawned by one that has been cancelled since.

    The run is looked up before the thread's status: one that resumed a cancelled thread is not
    known before its first commit, and that replaces the status.
    """
    found = Parent.of(record)
    if found is None or found.stays or record.previous_run_id is not None:
        return False
    parent = ThreadKey(record.key.tenant, found.thread)
    if store.run(parent, found.run_id) is None:
        return False
    head, info = store.head(parent), store.thread(parent)
    if head is None or head.note != FROM_OUTSIDE:  # its process was stopped: resume() finds them
        return False
    return info is not None and info.status == "cancelled"


def notify_parent(
    store: Store, codec: LogCodec, record: RunRecord, status: str, state: Any = None
) -> None:
    """Send a spawned run's end to its parent; the second time nothing is written.

    A parent that is gone is not notified.
    """
    found, key = Parent.of(record), record.key
    if found is None:
        return
    parent, topic = ThreadKey(key.tenant, found.thread), child_topic(key.thread)
    if store.thread(parent) is None:
        return
    failure = None if status == "completed" else store.failure(key, record.run_id)
    said = failure and f"{failure.error_type}: {failure.message}"[:_LONGEST_FAILURE]
    value = {"run_id": record.run_id, "status": status, "state": state, "failure": said}
    codec = codec.for_thread(parent)
    mark = codec.digest(b"\xc1child:" + record.run_id.encode())
    try:
        value["state"] = as_plain(state)
        payload = seal_message(codec, topic, mark, value, key=record.run_id, by=key.thread)
    except MilecastleError:
        small = value | {"state": None}
        payload = seal_message(codec, topic, mark, small, key=record.run_id, by=key.thread)
    try:
        require_mailbox(store).send(parent, topic, mark, payload)
    except MailboxFull:
        raise
    except InvalidRequest:
        if store.thread(parent) is not None:
            raise
