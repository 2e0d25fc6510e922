"""Stores that break a promise on mailboxes. ``MailboxContract`` must catch each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec.structs

from milecastle.errors import Conflict, InvalidRequest, MailboxFull, StoreError, Unavailable
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.mailbox import Debounce, Marks, NewRun, Sent, StoredMessage
from milecastle.ports.store import Batch, CommitMany
from milecastle.stores.memory.messages import Messages
from milecastle.stores.memory.store import MemoryMailbox
from tests.broken_stores.store import BrokenStore

__all__ = ["BROKEN_MAILBOXES", "BrokenMailbox"]

Send = Callable[[ThreadKey, str, str, bytes], Sent]
Unread = Callable[..., Sequence[StoredMessage]]


class BrokenMailbox(BrokenStore):
    """The memory store, with ways round the rules of mailboxes."""

    ignores_graphs = False

    @property
    def mailbox(self) -> MemoryMailbox:
        return _Mailbox(self)

    def mailbox_of_memory(self) -> MemoryMailbox:
        """The mailbox that keeps the rules."""
        return super().mailbox

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        return send(key, topic, mark, payload)

    def debounced(self, debounce: Debounce) -> Debounce | None:
        return debounce

    def unread(self, unread: Unread, key: ThreadKey, **how: Any) -> Sequence[StoredMessage]:
        return unread(key, **how)

    def discard(self, key: ThreadKey, number: int) -> bool:
        return self.mailbox_of_memory().discard(key, number)

    def restore(self, key: ThreadKey, messages: Sequence[StoredMessage], marks: Marks) -> None:
        self.mailbox_of_memory().restore(key, messages, marks)

    def messages(self, key: ThreadKey) -> Messages:
        """The messages of a thread; empty if it has none."""
        log = self._logs.get(key)
        return (log.messages if log else None) or Messages()

    def change(self, line: ThreadInfo | None, **changes: Any) -> None:
        """Write a line without asking."""
        if line is not None:
            changed = msgspec.structs.replace(line, **changes)
            with self._lock:
                self._logs[line.key].info = changed
                self._claims.note(line.key, changed)


class _Mailbox(MemoryMailbox):
    """Lets the store break each call."""

    def __init__(self, store: BrokenMailbox) -> None:
        self._store = store
        self._real = store.mailbox_of_memory()

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
        if debounce is not None:
            debounce = self._store.debounced(debounce)
            return self._real.send(key, topic, mark, payload, graph, run, debounce)
        if not self._store.ignores_graphs and graph:
            return self._real.send(key, topic, mark, payload, graph)
        return self._store.send(self._real.send, key, topic, mark, payload)

    def unread(self, key: ThreadKey, **how: Any) -> Sequence[StoredMessage]:
        return self._store.unread(self._real.unread, key, **how)

    def discard(self, key: ThreadKey, number: int) -> bool:
        return self._store.discard(key, number)

    def marks(self, key: ThreadKey) -> Marks:
        return self._real.marks(key)

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        self._store.restore(key, messages, marks or Marks())


class StoresMessagesAsEntries(
    BrokenMailbox, caught_by=("test_a_message_moves_no_head_and_ends_no_claim",)
):
    """A message moves the fence: the active writer is refused."""

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        sent = send(key, topic, mark, payload)
        newest = self._logs[key].entries[-1]
        entry = msgspec.structs.replace(newest, seq=newest.seq + 1, id=f"m{newest.seq}")
        self._logs[key].entries.append(entry)
        return sent


class WakesEveryThread(
    BrokenMailbox,
    caught_by=(
        "test_a_message_moves_no_head_and_ends_no_claim",
        "test_a_message_wakes_a_thread_that_waits_for_its_topic",
    ),
):
    """Any message makes its thread due, also one that a worker has."""

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        sent = send(key, topic, mark, payload)
        self.change(self.thread(key), due_at=1, worker="")
        return sent


_QUIET = "test_a_debounced_message_makes_its_thread_due_when_no_more_come"


class WakesAtOnce(BrokenMailbox, caught_by=(_QUIET,)):
    """A message is a message."""

    def debounced(self, debounce: Debounce) -> Debounce | None:
        return None


class WaitsForSilence(BrokenMailbox, caught_by=(_QUIET,)):
    """As long as messages come, the thread waits."""

    def debounced(self, debounce: Debounce) -> Debounce | None:
        return msgspec.structs.replace(debounce, at_most=None)


class CreatesThreads(BrokenMailbox, caught_by=("test_a_missing_thread_takes_no_message",)):
    """A message to a thread that does not exist waits until it does."""

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        try:
            return send(key, topic, mark, payload)
        except InvalidRequest:
            return Sent(number=1, reused=False, status="queued")


class IgnoresGraphs(BrokenMailbox, caught_by=("test_a_message_for_another_graph_is_not_stored",)):
    """A message is stored, whatever graph it is for."""

    ignores_graphs = True


class ReadsTheNewestFirst(
    BrokenMailbox, caught_by=("test_messages_are_read_in_the_order_of_commits",)
):
    """The newest is the most urgent."""

    def unread(self, unread: Unread, key: ThreadKey, **how: Any) -> Sequence[StoredMessage]:
        return list(unread(key, **how))[::-1]


class FoldsTopics(BrokenMailbox, caught_by=("test_topics_and_marks_are_compared_by_code_point",)):
    """A topic in capitals is the same topic."""

    def unread(self, unread: Unread, key: ThreadKey, **how: Any) -> Sequence[StoredMessage]:
        topic = how.pop("topic", None)
        found = unread(key, **how)
        return [one for one in found if topic is None or one.topic.lower() == topic.lower()]


class ForgetsMarksOfConsumedMessages(BrokenMailbox, caught_by=("test_a_mark_is_accepted_once",)):
    """A consumed message leaves nothing."""

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        self.messages(batch.key).consumed.clear()


class NumbersFromTheHighestUnread(BrokenMailbox, caught_by=("test_a_number_is_used_once",)):
    """Forgets which number was the last."""

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        messages = self.messages(key)
        messages.last = max(messages.unread, default=0)
        return send(key, topic, mark, payload)


class NumbersOutsideTheLock(BrokenMailbox, caught_by=("test_senders_at_once_keep_their_order",)):
    """Chooses the number first, and writes a moment later."""

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        number = self.messages(key).last
        time.sleep(0.0005)
        self.messages(key).last = number
        return send(key, topic, mark, payload)


class ConsumesInRefusedBatches(
    BrokenMailbox, caught_by=("test_messages_are_consumed_with_the_batch",)
):
    """What was received is consumed, whatever becomes of the batch."""

    def commit(self, batch: Batch) -> None:
        try:
            super().commit(batch)
        except Conflict:
            self.messages(batch.key).consume(batch.consumes, 1)
            raise


class IgnoresMissingMessages(
    BrokenMailbox,
    caught_by=(
        "test_a_batch_that_consumes_a_missing_message_is_refused",
        "test_a_discarded_message_is_not_consumed",
    ),
):
    """Consumes those that are there."""

    def commit(self, batch: Batch) -> None:
        there = tuple(one for one in batch.consumes if one in self.messages(batch.key).unread)
        super().commit(msgspec.structs.replace(batch, consumes=there))


class ChecksAllBatchesFirst(
    BrokenMailbox, caught_by=("test_batches_written_together_consume_each_message_once",)
):
    """Compares each batch of a group with the mailbox as it was before the group."""

    @property
    def commit_many(self) -> CommitMany:
        return self._commit_all

    def _commit_all(self, batches: Sequence[Batch]) -> list[StoreError | None]:
        before = {batch.key: set(self.messages(batch.key).unread) for batch in batches}
        outcomes: list[StoreError | None] = []
        for batch in batches:
            left = set(batch.consumes) - before[batch.key]
            there = tuple(one for one in batch.consumes if one in self.messages(batch.key).unread)
            try:
                self.commit(msgspec.structs.replace(batch, consumes=(*there, *left)))
                outcomes.append(None)
            except Conflict as conflict:
                outcomes.append(conflict)
        return outcomes


class DiscardsTwice(BrokenMailbox, caught_by=("test_a_discarded_message_is_not_consumed",)):
    """The message is gone, so all is well."""

    def discard(self, key: ThreadKey, number: int) -> bool:
        super().discard(key, number)
        return True


class SendsWithoutALook(
    BrokenMailbox,
    caught_by=(
        "test_a_message_wakes_a_thread_that_waits_for_its_topic",
        "test_a_mailbox_is_restored_with_its_numbers",
    ),
):
    """A waiting thread will find the message some day."""

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        line = self.thread(key)
        sent = send(key, topic, mark, payload)
        self.change(line)
        return sent

    def restore(self, key: ThreadKey, messages: Sequence[StoredMessage], marks: Marks) -> None:
        line = self.thread(key)
        super().restore(key, messages, marks)
        self.change(line)


class MovesDueThreadsBack(
    BrokenMailbox, caught_by=("test_a_message_delays_no_thread_that_is_due",)
):
    """A thread is due since its last message."""

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        sent = send(key, topic, mark, payload)
        line = self.thread(key)
        if line is not None and line.due_at is not None:
            self.change(line, due_at=self.now())
        return sent


class SuspendsWithoutALook(
    BrokenMailbox,
    caught_by=(
        "test_a_row_that_waits_sees_earlier_messages",
        "test_a_message_that_meets_a_suspension_is_not_forgotten",
    ),
):
    """The line is as the writer gave it, even if a message came a moment before."""

    def commit(self, batch: Batch) -> None:
        waits = batch.thread is not None and bool(batch.thread.waiting_topics)
        if waits:
            time.sleep(0.001)  # let the message come first
        super().commit(batch)
        if waits:
            self.change(batch.thread)


class KeepsMailboxesOfDeletedThreads(
    BrokenMailbox, caught_by=("test_deleting_a_thread_deletes_its_mailbox",)
):
    """Mailboxes by name."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        self._left = self.messages(key)
        return super().delete(key, head=head, head_id=head_id)

    def unread(self, unread: Unread, key: ThreadKey, **how: Any) -> Sequence[StoredMessage]:
        left = getattr(self, "_left", Messages())
        return unread(key, **how) or list(left.unread.values())


class DeletesDueThreads(
    BrokenMailbox,
    caught_by=(
        "test_a_thread_that_a_message_made_due_is_not_deleted_at_a_head",
        "test_a_message_and_a_deletion_at_a_head_do_not_both_win",
    ),
):
    """The head is all that counts."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        time.sleep(0.001)  # let a message come first
        if key in self._logs:
            self._logs[key].messages = None
        return super().delete(key, head=head, head_id=head_id)


class PrunesMessages(BrokenMailbox, caught_by=("test_pruning_keeps_unread_messages",)):
    """What is old is gone."""

    def prune(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Sequence[Entry],
        oldest: Entry | None = None,
        archived: bool = False,
    ) -> int:
        dropped = super().prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )
        self.messages(key).unread.clear()
        return dropped


class ForgetsMarksWhenArchiving(BrokenMailbox, caught_by=("test_archiving_keeps_marks",)):
    """What left the store was never there."""

    def prune(self, key: ThreadKey, **options: Any) -> int:
        dropped = super().prune(key, **options)
        if options.get("archived"):
            self._logs[key].messages = self.messages(key).pruned(options["cut"])
        return dropped


class RemembersMarksForever(BrokenMailbox, caught_by=("test_pruning_keeps_unread_messages",)):
    """Pruning forgets entries only."""

    def prune(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Sequence[Entry],
        oldest: Entry | None = None,
        archived: bool = False,
    ) -> int:
        before = self.messages(key)
        dropped = super().prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )
        self._logs[key].messages = before
        return dropped


class DropsMessagesWhenFull(BrokenMailbox, caught_by=("test_a_full_mailbox_refuses_messages",)):
    """The sender need not know."""

    def send(self, send: Send, key: ThreadKey, topic: str, mark: str, payload: bytes) -> Sent:
        try:
            return send(key, topic, mark, payload)
        except MailboxFull:
            return Sent(number=self.messages(key).last + 1, reused=False, status="running")


class NumbersCopiesAgain(BrokenMailbox, caught_by=("test_a_mailbox_is_restored_with_its_numbers",)):
    """A copy begins at 1."""

    def restore(self, key: ThreadKey, messages: Sequence[StoredMessage], marks: Marks) -> None:
        for message in messages:
            self.mailbox_of_memory().send(key, message.topic, message.mark, message.payload)


class AnswersWhenClosed(BrokenMailbox, caught_by=("test_a_closed_store_takes_no_message",)):
    """Nothing is nothing."""

    def unread(self, unread: Unread, key: ThreadKey, **how: Any) -> Sequence[StoredMessage]:
        try:
            return unread(key, **how)
        except Unavailable:
            return []


BROKEN_MAILBOXES: tuple[type[BrokenMailbox], ...] = tuple(
    store for store in BrokenStore.known if issubclass(store, BrokenMailbox)
)
"""One for each way to break the contract of mailboxes; each says which clauses catch it."""
