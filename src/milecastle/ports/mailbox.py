"""Mailboxes: messages sent to a thread, stored beside its log until a commit applies them.

Rules for every store with this port, checked by ``milecastle.testing.MailboxContract``:

1. ``send`` moves no head and takes no claim: no fence refuses it, and it refuses no writer. A
   thread without an index row has no mailbox: ``InvalidRequest``.
2. A thread's messages are numbered from 1 in the order of their commits; a number is used once. A
   mark is accepted once, also after its message was consumed, until pruning: the second ``send``
   writes nothing.
3. ``Batch.consumes`` are the numbers that the batch applies. They are consumed with it, or stay
   unread if it is refused. A number that is missing or consumed refuses the batch: ``Conflict``.
4. A row of the index with ``waiting_topics`` is due as soon as there is a message with one of these
   topics above the number beside it: the commit of the row and ``send`` each look for the other,
   so the later one makes the thread due. ``send`` changes no row that has a worker or no lane.
5. Deleting a thread deletes its mailbox. Pruning keeps unread messages, and forgets those, with
   their marks, that entries below the cut consumed.
6. At most ``MOST_UNREAD`` messages of a thread are unread: ``MailboxFull``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus, ThreadInfo

__all__ = [
    "MOST_UNREAD",
    "Mailbox",
    "Sent",
    "StoredMessage",
    "refuse_no_thread",
    "waits_for",
    "with_unread",
]

MOST_UNREAD = 10_000


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An unread message. ``mark`` identifies it in its thread; ``payload`` is opaque."""

    number: int
    topic: str
    mark: str
    payload: bytes
    sent_at: int


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A message's number, and the status of its thread when it was stored.

    ``reused`` says the mailbox had a message with this mark: nothing was written.
    """

    number: int
    reused: bool
    status: RunStatus


class Mailbox(Protocol):
    """The messages of a store's threads. Times are in microseconds since 1970."""

    def send(self, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        """Store a message durably, and make its thread due if it waits for the topic."""
        ...

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        """Messages not consumed, oldest first, with numbers above ``after``.

        It costs as much as it returns, however many messages were consumed.
        """
        ...

    def discard(self, key: ThreadKey, number: int) -> bool:
        """Consume a message without applying it; ``False`` if it is not unread.

        A writer that read it before is refused when its batch consumes it.
        """
        ...


def waits_for(row: ThreadInfo, topic: str, number: int) -> bool:
    """True if a message makes a thread due that no worker has."""
    if row.worker or not row.lane:
        return False
    return any(name == topic and number > seen for name, seen in row.waiting_topics)


def with_unread(row: ThreadInfo, is_unread: Callable[[str, int], bool]) -> ThreadInfo:
    """The index row, due at once if a message for it is unread: of a topic, above a number."""
    if row.worker or not row.lane:
        return row
    if any(is_unread(topic, seen) for topic, seen in row.waiting_topics):
        return msgspec.structs.replace(row, due_at=0)
    return row


def refuse_no_thread(key: ThreadKey) -> NoReturn:
    """Refuse a message to a thread that does not exist: a typo must not create one."""
    raise InvalidRequest(
        f"thread '{key.thread}' does not exist, so no message can be sent to it: start it first, "
        "with submit(..., if_absent=True)"
    )
