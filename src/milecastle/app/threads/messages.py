"""Sending messages to threads, listing and discarding unread ones.

A message is checked and sealed before it is stored. Sending writes nothing else in the thread: a
run in progress does not notice it before it receives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from milecastle.app.threads.log import Threads
from milecastle.codec.answers import read_message
from milecastle.codec.deltas import LogCodec
from milecastle.codec.messages import open_message, seal_message
from milecastle.engine.position import Position
from milecastle.engine.reserved_channels import Wait
from milecastle.engine.tasks import held_messages, is_received_row, received_row
from milecastle.engine.waiting import each_wait, is_decided, received_by
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey, check_name
from milecastle.model.message import Message, check_topic
from milecastle.ports.mailbox import Debounce, Mailbox, Sent, each_message, refuse_no_thread
from milecastle.ports.store import JoinedStore, Store
from milecastle.support.printable import quoted

_KEY_MARK: Final = b"\xc1message:"
_TASK_MARK: Final = b"\xc1sent by:"
"""Prefixes of a message's key before it is digested: a caller's, and a task's."""

_LONGEST_QUIET: Final = 365 * 86_400

_AT_ONCE: Final = 16
"""How many messages a run reads at a time."""


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
    task: str | None = None,
    debounce: Debounce | None = None,
    joined: JoinedStore | None = None,
    carried: Mapping[str, str] | None = None,
) -> Sent:
    """Store a message. The second with the same ``key``, or from the same ``task``, is not.

    ``joined`` writes it in the caller's transaction; ``carried`` is observers' data.
    """
    mailbox = require_mailbox(threads.store)
    check_topic(topic)
    for what, name in (("message's key", key), ("sender's name", by)):
        if name is not None:
            check_name(what, name)
    if threads.encrypts and joined is None and threads.store.thread(thread) is None:
        refuse_no_thread(thread)  # it has no key
    codec = threads.codec.for_thread(thread)
    if (wanted := threads.graph.topics.get(topic)) is not None:
        value = read_message(value, wanted, f"a message of topic {quoted(topic)}")
    if task is not None:
        mark = codec.digest(_TASK_MARK + task.encode())
    elif key is not None:
        mark = codec.digest(_KEY_MARK + key.encode())
    else:
        mark = threads.clock.new_id()
    payload = seal_message(codec, topic, mark, value, key=key, by=by, carried=carried)
    to = joined or mailbox
    more: dict[str, Any] = {} if debounce is None else {"debounce": debounce}
    sent = to.send(thread, topic, mark, payload, threads.graph.name, **more)
    if sent.number:
        return sent
    _refuse_unread_by(threads, thread)
    return to.send(thread, topic, mark, payload, **more)


def read_debounce(quiet: float | None, at_most: float | None) -> Debounce | None:
    if quiet is None:
        if at_most is not None:
            raise InvalidRequest("at_most= bounds quiet=: give both")
        return None
    for name, given in (("quiet", quiet), ("at_most", quiet if at_most is None else at_most)):
        if not 0 <= given <= _LONGEST_QUIET:
            raise InvalidRequest(f"{name}= is from 0 to {_LONGEST_QUIET} seconds, not {given}")
    longest = None if at_most is None else round(at_most * 1_000_000)
    return Debounce(quiet=round(quiet * 1_000_000), at_most=longest)


def _refuse_unread_by(threads: Threads, key: ThreadKey) -> None:
    info, name = threads.store.thread(key), threads.graph.name
    if info is None:
        refuse_no_thread(key)
    record = threads.store.run(key, info.run_id)
    if info.graph != name or (record is not None and not record.fingerprint):
        raise InvalidRequest(
            f"thread '{key.thread}' is of the graph {quoted(info.graph)}, and this app is of "
            f"{quoted(name)}, whose nodes would never receive the message: call the app of its "
            "graph"
        )


def unread_messages(
    threads: Threads, key: ThreadKey, topic: str | None, *, after: int = 0, limit: int | None = None
) -> Sequence[Message]:
    mailbox = require_mailbox(threads.store)
    if topic is not None:
        check_topic(topic)
        found = mailbox.unread(key, topic=topic, after=after, limit=limit)
    else:
        found = list(islice(each_message(mailbox, key, after), limit))
    codec = threads.codec.for_thread(key) if found else threads.codec
    return [open_message(codec, one) for one in found]


def discard_message(threads: Threads, key: ThreadKey, number: int) -> bool:
    if type(number) is not int:
        raise InvalidRequest(f"a message's number is an int, not {type(number).__name__}")
    mailbox = require_mailbox(threads.store)
    first = next(each_message(mailbox, key, number - 1), None)  # an input is cancelled instead
    return first is not None and first.number == number and mailbox.discard(key, number)


def look(store: Store, codec: LogCodec, key: ThreadKey, topic: str, after: int) -> list[Message]:
    found = require_mailbox(store).unread(key, topic=topic, after=after, limit=_AT_ONCE)
    return [open_message(codec, one) for one in found]


def arrived_waits(store: Store, key: ThreadKey, position: Position) -> frozenset[str]:
    topics = {
        (topic, seen): None
        for label, wait in each_wait(position.reserved)
        if not is_decided(position.reserved, label)
        for topic, seen in wait.topics
    }
    if not topics:
        return frozenset()
    mailbox, held = require_mailbox(store), held_messages(position.results)
    held.update(*received_by(position.reserved).values())
    arrived = {
        (topic, seen)
        for topic, seen in topics
        if any(
            one.number not in held
            for one in mailbox.unread(key, topic=topic, after=seen, limit=len(held) + 1)
        )
    }
    return frozenset(
        label
        for label, wait in each_wait(position.reserved)
        if any((topic, seen) in arrived for topic, seen in wait.topics)
        or (wait.topics and _has_its_own(position, wait))
    )


def _has_its_own(position: Position, wait: Wait) -> bool:
    """True if a task recorded something about a message that had ended its wait, and then died."""
    row = position.results.get(received_row(position.step + 1, wait.task))
    return row is not None and not set(row["value"]) <= {*wait.received}


def still_unread(
    store: Store, key: ThreadKey, rows: Mapping[str, dict[str, Any]]
) -> Mapping[str, dict[str, Any]]:
    if not (held := held_messages(rows)):
        return rows
    mailbox = require_mailbox(store)
    unread = {
        one.number for number in held for one in mailbox.unread(key, after=number - 1, limit=1)
    }
    return {
        row: {"value": [number for number in kept["value"] if number in unread]}
        if is_received_row(row)
        else kept
        for row, kept in rows.items()
    }
