"""Sending messages to threads, listing and discarding unread ones.

A message is checked and sealed before it is stored. Sending writes nothing else of the thread: a
run in progress does not notice it before it receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from milecastle.app.threads.log import Threads
from milecastle.codec.answers import read_message
from milecastle.codec.messages import open_message, seal_message
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey, check_name
from milecastle.model.message import Message, check_topic
from milecastle.ports.mailbox import Mailbox, Sent, refuse_no_thread
from milecastle.ports.store import Store
from milecastle.support.printable import quoted

__all__ = ["discard_message", "require_mailbox", "send_message", "unread_messages"]

_KEY_MARK: Final = b"\xc1message:"
"""Prefix of a message's key before it is digested: no other digest has it."""


def require_mailbox(store: Store) -> Mailbox:
    if store.mailbox is None:
        raise InvalidRequest(
            f"messages need a store that has mailboxes, and {type(store).__name__} has none: "
            "compile(store='sqlite:///...') or 'postgresql://...'"
        )
    return store.mailbox


def send_message(
    threads: Threads,
    thread: ThreadKey,
    value: Any,
    topic: str = "",
    *,
    key: str | None = None,
    by: str | None = None,
) -> Sent:
    """Store a message. ``key`` makes the call repeatable: the second one writes nothing."""
    mailbox = require_mailbox(threads.store)
    check_topic(topic)
    for what, name in (("message's key", key), ("sender's name", by)):
        if name is not None:
            check_name(what, name)
    _refuse_unread_by(threads, thread)
    codec = threads.codec.for_thread(thread)
    if (wanted := threads.graph.topics.get(topic)) is not None:
        value = read_message(value, wanted, f"a message of topic {quoted(topic)}")
    mark = threads.clock.new_id() if key is None else codec.digest(_KEY_MARK + key.encode())
    payload = seal_message(codec, topic, mark, value, key=key, by=by)
    return mailbox.send(thread, topic, mark, payload)


def _refuse_unread_by(threads: Threads, key: ThreadKey) -> None:
    """Refuse a thread whose messages no code of this graph would read."""
    info, name = threads.store.thread(key), threads.graph.name
    if info is None:
        refuse_no_thread(key)
    if info.graph == name and info.lane:
        return
    record = threads.store.run(key, info.run_id)
    if info.graph != name or (record is not None and not record.fingerprint):
        raise InvalidRequest(
            f"thread '{key.thread}' is of the graph {quoted(info.graph)}, and this app is of "
            f"{quoted(name)}, whose nodes would never receive the message: call the app of its "
            "graph"
        )


def unread_messages(threads: Threads, key: ThreadKey, topic: str | None) -> Sequence[Message]:
    mailbox = require_mailbox(threads.store)
    found = mailbox.unread(key, topic=topic)
    codec = threads.codec.for_thread(key) if found else threads.codec
    return [open_message(codec, one) for one in found]


def discard_message(threads: Threads, key: ThreadKey, number: int) -> bool:
    return require_mailbox(threads.store).discard(key, number)
