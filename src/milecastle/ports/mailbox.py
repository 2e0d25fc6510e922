"""Mailboxes: messages sent to a thread, stored beside its log until a commit applies them.

Rules for every store with this port, checked by ``milecastle.testing.MailboxContract``:

1. ``send`` moves no head and takes no claim: no fence refuses it, and it refuses no writer. A
   thread without an index row has no mailbox: ``InvalidRequest``. A message for a graph is not
   stored in another graph's thread.
2. A thread's messages are numbered from 1 in the order of their commits; a number is used once. A
   mark is accepted once, also after its message was consumed, until pruning: the second ``send``
   writes nothing.
3. ``Batch.consumes`` are the numbers the batch applies. They are consumed with it, or stay
   unread if it is refused. A missing or consumed number refuses the batch: ``Conflict``.
4. An index row with ``waiting_topics`` is due as soon as there is a message with one of these
   topics above the number beside it: the commit of the row and ``send`` each look for the other,
   so the later one makes the thread due. ``send`` changes no row that has a worker or no lane, and
   delays no due thread. With a ``Debounce`` the thread is due when no message has come for a while:
   each moves that time, but not beyond ``at_most`` after the first unread one of its topic, nor
   beyond the time at which the thread wakes by itself.
5. Deleting a thread deletes its mailbox. At a head it is refused while a message makes the thread
   due (``has_unread``): ``Conflict``. Other unread messages do not keep a thread.
6. Pruning keeps unread messages, and forgets those, with their marks, that entries below the cut
   consumed; the newest message may be remembered longer. A discarded message counts as consumed at
   the head.
7. At most ``MOST_UNREAD`` messages of a thread are unread: ``MailboxFull``. Stores read the number
   at each call. Sending costs the same however many messages there are.
8. A *waiting input* is a message in the topic ``INPUTS``, which no caller can use. Its mark is the
   id of the run that it starts, and ``send`` stores this run's record with it (``NewRun``). While
   one is unread, the thread stays in its lane, and is due whenever its run has completed or was
   cancelled: the commit of such a row and ``send`` look for each other. If its run sleeps, it is
   due when that wakes. It is not deleted at a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn, Protocol

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest, MailboxFull
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo

MOST_UNREAD = 10_000
INPUTS: Final = "__input"
_FREE: Final = ("completed", "cancelled")
_PAGE = 256


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An unread message. ``mark`` identifies it in its thread; ``payload`` is opaque."""

    number: int
    topic: str
    mark: str
    payload: bytes
    sent_at: int


class Consumed(msgspec.Struct, frozen=True, kw_only=True):
    """A consumed message's number and mark, and the consuming entry's seq."""

    number: int
    mark: str
    seq: int


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """The last number used, and the consumed messages not yet forgotten, by number."""

    last: int = 0
    consumed: tuple[Consumed, ...] = ()


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A message's number, and its thread's status when it was stored.

    ``reused`` says the mailbox had a message with this mark: nothing was written.
    """

    number: int
    reused: bool
    status: RunStatus


class Debounce(msgspec.Struct, frozen=True, kw_only=True):
    """When a message makes its thread due: ``quiet`` microseconds after the last one.

    At most ``at_most`` microseconds after the first unread one, if that is given.
    """

    quiet: int
    at_most: int | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A queued run, recorded with the message that is its input.

    With ``unless``, only if the newest run with this input digest has the id ``besides``,
    or there is none.
    """

    record: RunRecord
    unless: str | None = None
    besides: str | None = None

    def is_known(self, newest: str | None) -> bool:
        """True if the newest run with the digest, if any, is another one."""
        return newest not in (None, self.besides)


class MailboxReader(Protocol):
    """The methods of a mailbox that read."""

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        """Messages not consumed, oldest first, with numbers above ``after``.

        It costs as much as it returns, however many messages were consumed.
        """
        ...

    def marks(self, key: ThreadKey) -> Marks:
        """Everything in the mailbox except unread messages: for copies."""
        ...


class Mailbox(MailboxReader, Protocol):
    """Messages to a store's threads. Times are in microseconds since 1970."""

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        run: NewRun | None = None,
        debounce: Debounce | None = None,
    ) -> Sent:
        """Store a message durably, and make its thread due if it waits for the topic.

        With ``graph``, nothing is stored and the number is 0 if the row has another graph, or
        no lane. So is it, and ``reused``, if another run has this input.
        """
        ...

    def discard(self, key: ThreadKey, number: int) -> bool:
        """Consume a message without applying it; ``False`` if it is not unread.

        A writer that read it before is refused when its batch consumes it.
        """
        ...

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        """Write messages and marks with their numbers, replacing those with the same: for copies.

        Makes the thread due as ``send`` does. ``MOST_UNREAD`` is not checked.
        """
        ...


def each_message(
    mailbox: Mailbox | None, key: ThreadKey, after: int = 0
) -> Iterator[StoredMessage]:
    """``each_unread`` without inputs."""
    return (one for one in each_unread(mailbox, key, after) if one.topic != INPUTS)


def each_unread(
    mailbox: MailboxReader | None, key: ThreadKey, after: int = 0
) -> Iterator[StoredMessage]:
    """A thread's unread messages and inputs, read in pages; none without a mailbox."""
    page = mailbox.unread(key, after=after, limit=_PAGE) if mailbox else ()
    while mailbox and page:
        yield from page
        page = mailbox.unread(key, after=page[-1].number, limit=_PAGE)


def name_of(message: StoredMessage) -> str:
    """A payload's place, for errors."""
    if message.topic == INPUTS:
        return f"input of run {message.mark}"
    return f"message {message.number}"


def waits_for(row: ThreadInfo, topic: str, number: int) -> bool:
    if row.worker or not row.lane:
        return False
    if topic == INPUTS:
        return row.due_at is None and row.status in _FREE
    return any(name == topic and number > seen for name, seen in row.waiting_topics)


def woken(
    row: ThreadInfo,
    topic: str,
    number: int,
    now: int,
    debounce: Debounce | None,
    first_sent_at: Callable[[int], int],
) -> ThreadInfo | None:
    """The row after a message it may wait for; ``None`` if it stays as it is.

    ``first_sent_at``: when the topic's first unread message above a number was sent.
    """
    is_due = row.due_at is not None and row.due_at <= now
    if is_due or not waits_for(row, topic, number):
        return None
    due_at = now
    if debounce is not None:
        times = [now + debounce.quiet]
        if row.wake_at is not None:
            times.append(row.wake_at)
        if debounce.at_most is not None:
            seen = max(seen for name, seen in row.waiting_topics if name == topic)
            times.append(first_sent_at(seen) + debounce.at_most)
        due_at = max(now, min(times))
    return msgspec.structs.replace(row, due_at=due_at)


def is_of(row: ThreadInfo, graph: str) -> bool:
    return not graph or (row.graph == graph and bool(row.lane))


def has_unread(row: ThreadInfo, is_unread: Callable[[str, int], bool]) -> bool:
    return bool(row.lane) and any(is_unread(topic, seen) for topic, seen in row.waiting_topics)


def is_kept(row: ThreadInfo, is_unread: Callable[[str, int], bool]) -> bool:
    return is_unread(INPUTS, 0) or has_unread(row, is_unread)


def with_unread(row: ThreadInfo, lane: str, is_unread: Callable[[str, int], bool]) -> ThreadInfo:
    """The index row, due if a message it waits for is unread, or an input.

    ``lane`` is the one the thread had, in which an unread input keeps it.
    """
    if is_unread(INPUTS, 0):
        due_at = row.due_at
        if due_at is None:
            due_at = 0 if row.status in _FREE else row.wake_at
        row = msgspec.structs.replace(row, lane=row.lane or lane, due_at=due_at)
    if row.worker or not has_unread(row, is_unread):
        return row
    return msgspec.structs.replace(row, due_at=0)


def restored(row: ThreadInfo, now: int, is_unread: Callable[[str, int], bool]) -> ThreadInfo:
    """The row after its mailbox was restored: due as after ``send``."""
    if row.worker or not row.lane:
        return row
    found = with_unread(row, row.lane, is_unread)
    if found.due_at != 0:
        return found
    due_at = now if row.due_at is None else min(row.due_at, now)
    return msgspec.structs.replace(found, due_at=due_at)


def refuse_no_thread(key: ThreadKey) -> NoReturn:
    """Refuse a message to a thread that does not exist: a typo must not create one."""
    raise InvalidRequest(
        f"thread '{key.thread}' does not exist, so no message can be sent to it: start it first, "
        "with submit(..., if_absent=True)"
    )


def refuse_full(key: ThreadKey) -> NoReturn:
    raise MailboxFull(
        f"thread '{key.thread}' has {MOST_UNREAD:,} unread messages: send again when it has "
        "received some, or discard those that no code receives"
    )
