"""The contract of mailboxes: for every store that takes messages to threads.

Fill the two hooks and give the class a name that pytest collects::

    class TestMailboxOfMyStore(MailboxContract):
        def open_store(self) -> ClaimStore:
            return MyStore(...)

        def reopen(self, store: Store) -> ClaimStore:
            return MyStore(...)  # on the same data, as after a crash

Each test names the rule of ``milecastle.ports.mailbox`` that it checks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from milecastle.errors import Conflict, InvalidRequest, MailboxFull, Unavailable
from milecastle.model.checkpoint import DELTA, SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports import mailbox as port
from milecastle.ports.claims import ClaimStore
from milecastle.ports.mailbox import Consumed, Debounce, Mailbox, Marks
from milecastle.ports.store import Store
from milecastle.testing.contract_claims import FAR, LANE, ClaimHooks, a_line, names, queued
from milecastle.testing.entries import HARD_IDS, Writer, a_failure, a_key, a_result, a_run

_MEETINGS = 40
_GO = (("go", 0),)


def mailbox_of(store: Store) -> Mailbox:
    assert store.mailbox is not None, "the store has no mailbox"
    return store.mailbox


def unread(store: Store, key: ThreadKey, **how: Any) -> list[int]:
    return [message.number for message in mailbox_of(store).unread(key, **how)]


def send(store: Store, writer: Writer, mark: str, topic: str = "go") -> int:
    sent = mailbox_of(store).send(writer.key, topic, mark, mark.encode())
    assert not sent.reused
    return sent.number


def running(store: Store, thread: str, number: int = 1, **changes: Any) -> Writer:
    return queued(store, thread, number, worker="one", status="running", **changes)


def suspended(writer: Writer, **changes: Any) -> ThreadInfo:
    changes = {"status": "sleeping", "due_at": None, "waiting_topics": _GO, **changes}
    return a_line(writer, **changes)


def waiting(store: Store, thread: str, number: int = 1, **changes: Any) -> Writer:
    writer = running(store, thread, number)
    writer.append(store, thread=suspended(writer, **changes))
    return writer


def claimed(store: ClaimStore) -> list[str]:
    return names(store.claim("two", [LANE], limit=9))


class MailboxContract(ClaimHooks):
    """Every clause on mailboxes, for one store. Needs ``open_store`` and ``reopen``."""

    def test_a_message_moves_no_head_and_ends_no_claim(self, store: ClaimStore) -> None:
        # Rule 1: the active writer continues, and its worker keeps the thread.
        writer = running(store, "a")
        head = store.head(writer.key)
        sent = mailbox_of(store).send(writer.key, "go", "m", b"x")
        assert (sent.number, sent.reused, sent.status) == (1, False, "running")
        assert store.head(writer.key) == head
        writer.append(store)
        line = store.thread(writer.key)
        assert line is not None
        assert line.worker == "one"
        assert claimed(store) == []

    def test_a_missing_thread_takes_no_message(self, store: ClaimStore) -> None:
        # Rule 1: and none is created; nor does one without an index row.
        bare = Writer(a_key("bare"), 2)
        bare.append(store)
        for key in (a_key("nobody"), bare.key):
            with pytest.raises(InvalidRequest):
                mailbox_of(store).send(key, "go", "m", b"x")
            with pytest.raises(InvalidRequest):
                mailbox_of(store).restore(key)
            assert unread(store, key) == []
            assert mailbox_of(store).marks(key) == Marks()
            assert not mailbox_of(store).discard(key, 1)
            assert store.thread(key) is None
        writer = running(store, "nobody")
        assert unread(store, writer.key) == []

    def test_a_message_for_another_graph_is_not_stored(self, store: ClaimStore) -> None:
        # Rule 1: judged by the row it is stored beside, of which a caller's read would be older.
        writer, idle = running(store, "a"), running(store, "idle", 2, lane="")
        row, mailbox = store.thread(writer.key), mailbox_of(store)
        assert row is not None
        for key, graph in ((writer.key, f"{row.graph}2"), (idle.key, row.graph)):
            assert mailbox.send(key, "go", "m", b"x", graph).number == 0
            assert unread(store, key) == []
        assert mailbox.send(writer.key, "go", "m", b"x", row.graph).number == 1
        assert mailbox.send(writer.key, "go", "m", b"x", f"{row.graph}2").number == 0
        assert mailbox.send(writer.key, "go", "m", b"x", row.graph).reused
        assert mailbox.send(idle.key, "go", "m", b"x").number == 1

    def test_messages_are_read_in_the_order_of_commits(self, store: ClaimStore) -> None:
        # Rule 2: numbered from 1 in each thread; by topic, from a number on, and after a crash.
        before = store.now()
        writer, other = running(store, "a"), running(store, "a", 2, tenant="other")
        numbers = [send(store, writer, mark, t) for t, mark in (("go", "b"), ("no", "a"))]
        numbers.append(send(store, writer, "c"))
        assert numbers == [1, 2, 3]
        assert send(store, other, "b") == 1
        store = self.reopen(store)
        found = mailbox_of(store).unread(writer.key)
        assert [(m.number, m.topic, m.mark, m.payload) for m in found] == [
            (1, "go", "b", b"b"),
            (2, "no", "a", b"a"),
            (3, "go", "c", b"c"),
        ]
        assert all(before <= message.sent_at <= store.now() for message in found)
        assert unread(store, writer.key, topic="go") == [1, 3]
        assert unread(store, writer.key, topic="go", after=1) == [3]
        assert unread(store, writer.key, after=1, limit=1) == [2]
        assert unread(store, writer.key, topic="GO") == []
        assert unread(store, writer.key, limit=-1) == unread(store, writer.key, after=2**70) == []
        assert unread(store, writer.key, after=-(2**70), limit=2**70) == [1, 2, 3]
        assert unread(store, other.key) == [1]

    def test_topics_and_marks_are_compared_by_code_point(self, store: ClaimStore) -> None:
        # Rule 2: nothing is folded, normalised or cut off; a topic may be empty.
        writer = running(store, "a")
        topics = ("", *HARD_IDS)
        for number, topic in enumerate(topics, 1):
            assert send(store, writer, topic or "empty", topic) == number
        for number, topic in enumerate(topics, 1):
            assert unread(store, writer.key, topic=topic) == [number]
        row = suspended(writer, waiting_topics=tuple((topic, 99) for topic in topics))
        writer.append(store, thread=row)
        assert store.thread(writer.key) == row

    def test_a_mark_is_accepted_once(self, store: ClaimStore) -> None:
        # Rule 2: also after its message was consumed, and after a crash; in each thread.
        writer, other = running(store, "a"), running(store, "b", 2)
        send(store, writer, "b")
        send(store, writer, "c")
        again = mailbox_of(store).send(writer.key, "no", "b", b"other")
        assert (again.number, again.reused, again.status) == (1, True, "running")
        assert [message.payload for message in mailbox_of(store).unread(writer.key)] == [b"b", b"c"]
        writer.append(store, consumes=(1,))
        store = self.reopen(store)
        assert mailbox_of(store).send(writer.key, "go", "b", b"late").reused
        assert unread(store, writer.key) == [2]
        assert send(store, other, "b") == 1

    def test_a_number_is_used_once(self, store: ClaimStore) -> None:
        # Rule 2: also after the newest message was consumed, discarded, or forgotten by pruning.
        writer = running(store, "a")
        writer.append(store, consumes=(send(store, writer, "m1"),))
        assert send(store, writer, "m2") == 2
        assert mailbox_of(store).discard(writer.key, 2)
        writer.write(store, (SNAPSHOT, SNAPSHOT, SNAPSHOT))
        writer.prune(store, writer.head)
        assert send(store, writer, "m3") == 3

    def test_senders_at_once_keep_their_order(self, store: ClaimStore) -> None:
        # Rule 2: every message once, each sender's in order, and one with a mark that all send.
        writer, senders, each = running(store, "a"), 4, 20
        mailbox = mailbox_of(store)

        def run(sender: int) -> None:
            for number in range(each):
                mailbox.send(writer.key, "go", f"{sender}-{number}", b"x")
                mailbox.send(writer.key, "go", f"same-{number}", b"x")

        with ThreadPoolExecutor(senders) as pool:
            list(pool.map(run, range(senders)))
        found = mailbox.unread(writer.key)
        assert [message.number for message in found] == list(range(1, (senders + 1) * each + 1))
        marks = [message.mark for message in found]
        for sender in (*range(senders), "same"):
            own = [mark for mark in marks if mark.startswith(f"{sender}-")]
            assert own == [f"{sender}-{number}" for number in range(each)]

    def test_messages_are_consumed_with_the_batch(self, store: ClaimStore) -> None:
        # Rule 3: those that it names; if it is refused, none.
        writer = running(store, "a")
        for mark in ("m1", "m2", "m3", "m4"):
            send(store, writer, mark)
        late = writer.batch(writer.plan(), consumes=(2,))
        writer.append(store, consumes=(1, 3))
        with pytest.raises(Conflict):
            store.commit(late)
        assert unread(store, writer.key) == [2, 4]
        writer.append(store, thread=a_line(writer), runs=(writer.run,), consumes=(4,))
        with self.reopened(store) as again:
            assert unread(again, writer.key) == [2]
            seqs = [(one.mark, one.seq) for one in mailbox_of(again).marks(writer.key).consumed]
            assert seqs == [("m1", 2), ("m3", 2), ("m4", 3)]

    def test_a_batch_that_consumes_a_missing_message_is_refused(self, store: ClaimStore) -> None:
        # Rule 3: whatever else it has, none of it is written; also one that is the next thread's.
        writer, other = running(store, "a"), running(store, "b", 2)
        for mark in ("m1", "m2"):
            send(store, writer, mark)
            send(store, other, mark)
        writer.append(store, consumes=(1,))
        new = Writer(a_key("new"), 3)
        run = a_run(writer.key, 9)
        parts: list[dict[str, Any]] = [
            {},
            {"results": (a_result(2),)},
            {"runs": (run,), "failure": a_failure(run.run_id), "manifest": ("f" * 32, b"{}")},
        ]
        gone = [(1,), (2, 3), (2, 2**32 + 1), (2, 2**32 + 2), (0,), (-1,), (2, 2**70)]
        refused = [
            *(writer.batch(writer.plan(), consumes=numbers) for numbers in gone),
            *(writer.batch(writer.plan(), consumes=(2, 9), **part) for part in parts),
            *(writer.batch(consumes=(2, 9), **part) for part in parts),
            new.batch(new.plan(), runs=(new.run,), consumes=(1,)),
        ]
        for batch in refused:
            with pytest.raises(Conflict):
                store.commit(batch)
            if store.commit_many is not None:
                step = other.plan()
                outcomes = store.commit_many([batch, other.batch(step, consumes=())])
                other.keep(step)
                assert isinstance(outcomes[0], Conflict)
                assert outcomes[1] is None
        assert [run.run_id for run in store.runs(writer.key)] == [writer.run.run_id]
        assert store.manifest(writer.key, "f" * 32) is None
        assert list(store.results(writer.key)) == []
        assert store.thread(new.key) is None
        assert store.head(new.key) is None
        assert unread(store, writer.key) == [2]
        assert unread(store, other.key) == [1, 2]
        writer.append(store, consumes=(2,))

    def test_batches_written_together_consume_each_message_once(self, store: ClaimStore) -> None:
        # Rule 3: a batch sees which messages those before it in the transaction consumed.
        if store.commit_many is None:
            pytest.skip("this store commits one batch at a time")
        writer = running(store, "a")
        for mark in ("m1", "m2"):
            send(store, writer, mark)
        first = writer.batch(writer.plan(), consumes=(1,))
        writer.keep(first.entries[0])
        second = writer.batch(writer.plan(), consumes=(1, 2))
        third = writer.batch(writer.plan(), thread=suspended(writer), consumes=(2,))
        outcomes = store.commit_many([first, second, third])
        assert [type(outcome) for outcome in outcomes] == [type(None), Conflict, type(None)]
        assert unread(store, writer.key) == []
        assert claimed(store) == []

    def test_a_discarded_message_is_not_consumed(self, store: ClaimStore) -> None:
        # Rule 3: the writer that read it is refused; its mark stays.
        writer, other = running(store, "a"), running(store, "b", 2)
        for mark in ("m1", "m2"):
            send(store, writer, mark)
            send(store, other, mark)
        late = writer.batch(writer.plan(), consumes=(1,))
        assert mailbox_of(store).discard(writer.key, 1)
        with pytest.raises(Conflict):
            store.commit(late)
        for number in (1, 3, 0, -1, 2**32 + 1, 2**70):
            assert not mailbox_of(store).discard(writer.key, number)
        store = self.reopen(store)
        assert unread(store, writer.key) == [2]
        assert unread(store, other.key) == [1, 2]
        assert mailbox_of(store).send(writer.key, "go", "m1", b"x").reused
        consumed = (Consumed(number=1, mark="m1", seq=1),)
        assert mailbox_of(store).marks(writer.key) == Marks(last=2, consumed=consumed)

    def test_a_message_wakes_a_thread_that_waits_for_its_topic(self, store: ClaimStore) -> None:
        # Rule 4: no other, and none that waits for a later message, has a worker or no lane.
        writer = waiting(store, "a")
        seen = waiting(store, "b", 2, waiting_topics=(("no", 0), ("go", 1)))
        no_lane = waiting(store, "c", 3, lane="")
        later = waiting(store, "d", 4, due_at=FAR)
        rows = [store.thread(one.key) for one in (seen, no_lane)]
        send(store, writer, "m1", "no")
        for one in (seen, no_lane):
            send(store, one, "m1")
        assert claimed(store) == []
        assert [store.thread(one.key) for one in (seen, no_lane)] == rows
        for one in (writer, seen, later):
            send(store, one, "m2")
        store = self.reopen(store)
        assert claimed(store) == ["a", "b", "d"]
        row = store.thread(writer.key)
        assert row is not None
        assert (row.worker, row.waiting_topics) == ("two", _GO)
        send(store, writer, "m3")
        assert store.thread(writer.key) == row
        assert mailbox_of(store).send(writer.key, "go", "m3", b"x").reused

    def test_a_message_delays_no_thread_that_is_due(self, store: ClaimStore) -> None:
        # Rule 4: a thread with many messages is not moved behind the others.
        first, second = waiting(store, "a"), waiting(store, "b", 2)
        send(store, first, "m1")
        self.wait(0.01)
        send(store, second, "m1")
        self.wait(0.01)
        row = store.thread(first.key)
        send(store, first, "m2")
        assert store.thread(first.key) == row
        assert names(store.claim("two", [LANE], limit=1)) == ["a"]

    def test_a_debounced_message_makes_its_thread_due_when_no_more_come(
        self, store: ClaimStore
    ) -> None:
        # Rule 4: each moves the time, up to a bound, and never beyond the thread's own.
        def sent(writer: Writer, mark: str, debounce: Debounce) -> int:
            mailbox_of(store).send(writer.key, "go", mark, b"x", debounce=debounce)
            row = store.thread(writer.key)
            assert row is not None
            return row.due_at or 0

        minute = 60_000_000
        wake_at = store.now() + minute // 2
        free, bound = waiting(store, "free"), waiting(store, "bound", 2)
        alarm = waiting(store, "alarm", 3, wake_at=wake_at, due_at=wake_at)
        due, busy = waiting(store, "due", 4, due_at=1), running(store, "busy", 5)
        quiet = Debounce(quiet=minute)
        before = store.now()
        first = sent(free, "m1", quiet)
        assert before + minute <= first <= store.now() + minute
        bounded = Debounce(quiet=minute, at_most=minute)
        limit = sent(bound, "m1", bounded)
        self.wait(0.1)
        assert sent(free, "m2", quiet) >= first + 90_000
        assert sent(bound, "m2", bounded) <= limit + 50_000
        assert sent(alarm, "m1", quiet) == wake_at
        assert sent(due, "m1", quiet) == 1
        assert sent(busy, "m1", quiet) <= store.now()
        assert claimed(store) == ["due"]
        busy.append(store, thread=suspended(busy))
        assert claimed(store) == ["busy"]
        store = self.reopen(store)
        send(store, free, "m3")
        assert claimed(store) == ["free"]
        assert sent(bound, "m3", Debounce(quiet=0)) <= store.now()
        assert claimed(store) == ["bound"]

    def test_a_row_that_waits_sees_earlier_messages(self, store: ClaimStore) -> None:
        # Rule 4: above the number it has seen, except those that its batch consumes.
        numbers = {"a": 0, "b": 2, "c": 0, "d": 0, "e": 1}
        for number, (name, seen) in enumerate(numbers.items(), 1):
            writer = running(store, name, number)
            send(store, writer, "m1")
            send(store, writer, "m2")
            send(store, writer, "m3", "no")
            changes: dict[str, Any] = {"waiting_topics": (("go", seen),)}
            if name == "d":
                changes["due_at"] = FAR
            consumes = (1, 2) if name == "c" else ()
            writer.append(store, thread=suspended(writer, **changes), consumes=consumes)
        assert sorted(claimed(store)) == ["a", "d", "e"]
        busy, no_lane = running(store, "f", 8), running(store, "g", 9)
        for writer, changes in ((busy, {"worker": "one"}), (no_lane, {"lane": ""})):
            send(store, writer, "m1")
            row = suspended(writer, **changes)
            writer.append(store, thread=row)
            assert store.thread(writer.key) == row

    def test_a_message_that_meets_a_suspension_is_not_forgotten(self, store: ClaimStore) -> None:
        # Rule 4: whoever comes second sees the other; many times, from two threads.
        for number in range(1, _MEETINGS + 1):
            writer = running(store, f"{number}", number)
            assert _at_once(_suspend, _send, store, writer) == (True, True)
            assert claimed(store) == [f"{number}"]

    def test_deleting_a_thread_deletes_its_mailbox(self, store: ClaimStore) -> None:
        # Rule 5: also at a head; the next thread of that name has none of it.
        for number, head in enumerate((None, 2), 1):
            writer, other = running(store, "a", number), running(store, f"b{number}", number + 5)
            send(store, other, "m1")
            for mark in ("m1", "m2"):
                send(store, writer, mark)
            writer.append(store, consumes=(1,))
            assert store.delete(writer.key, head=head)
            assert unread(store, writer.key) == []
            again = running(store, "a", number + 10)
            assert unread(store, again.key) == []
            assert mailbox_of(store).marks(again.key) == Marks()
            assert send(store, again, "m1") == 1
            assert unread(store, other.key) == [1]
            store.delete(again.key)

    def test_a_thread_that_a_message_made_due_is_not_deleted_at_a_head(
        self, store: ClaimStore
    ) -> None:
        # Rule 5: a message moves no head, so the head alone would not show it.
        writer = waiting(store, "a")
        send(store, writer, "m1")
        id = writer.entries[2].id
        for _ in range(2):
            heads: list[dict[str, Any]] = [{"head": 2}, {"head": 2, "head_id": id}, {"head_id": id}]
            for head in heads:
                with pytest.raises(Conflict):
                    store.delete(writer.key, **head)
            store.claim("two", [LANE], limit=9)
        assert unread(store, writer.key) == [1]
        mailbox_of(store).discard(writer.key, 1)
        assert store.delete(writer.key, head=2)

    def test_a_message_and_a_deletion_at_a_head_do_not_both_win(self, store: ClaimStore) -> None:
        # Rule 5: many times, from two threads; a message that was accepted is there.
        for number in range(1, _MEETINGS + 1):
            writer = waiting(store, f"{number}", number)
            deleted, sent = _at_once(_delete, _send, store, writer)
            assert deleted is not sent
            assert unread(store, writer.key) == ([1] if sent else [])

    def test_pruning_keeps_unread_messages(self, store: ClaimStore) -> None:
        # Rule 6: and marks that entries above the cut consumed; the others are forgotten.
        writer = running(store, "a")
        for number in range(1, 6):
            send(store, writer, f"m{number}")
        writer.append(store, SNAPSHOT, consumes=(1,))
        assert mailbox_of(store).discard(writer.key, 2)
        writer.append(store, SNAPSHOT, consumes=(3,))
        writer.write(store, (SNAPSHOT, DELTA))
        writer.prune(store, 3)
        assert unread(store, writer.key) == [4, 5]
        assert [one.mark for one in mailbox_of(store).marks(writer.key).consumed] == ["m3"]
        assert mailbox_of(store).send(writer.key, "go", "m3", b"x").reused
        assert mailbox_of(store).send(writer.key, "go", "m4", b"x").reused
        assert [send(store, writer, mark) for mark in ("m1", "m2")] == [6, 7]
        writer.append(store, consumes=(4,))
        assert unread(store, writer.key) == [5, 6, 7]

    def test_archiving_keeps_marks(self, store: ClaimStore) -> None:
        # Rule 6: an archived entry still has the message that it consumed.
        writer = running(store, "a")
        send(store, writer, "m1")
        writer.append(store, SNAPSHOT, consumes=(1,))
        writer.write(store, (SNAPSHOT, SNAPSHOT))
        head = writer.head
        store.prune(writer.key, head=head, cut=head, rewritten=(), archived=True)
        assert mailbox_of(store).send(writer.key, "go", "m1", b"x").reused

    def test_a_full_mailbox_refuses_messages(self, store: ClaimStore) -> None:
        # Rule 7: until one was consumed or discarded; a mark that it has is found.
        writer = running(store, "a")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(port, "MOST_UNREAD", 3)
            for number in range(1, 4):
                send(store, writer, f"m{number}")
            for _ in range(2):
                with pytest.raises(MailboxFull):
                    send(store, writer, "more")
            assert mailbox_of(store).send(writer.key, "go", "m1", b"x").reused
            assert unread(store, writer.key) == [1, 2, 3]
            writer.append(store, consumes=(2,))
            assert send(store, writer, "m4") == 4
            with pytest.raises(MailboxFull):
                send(store, writer, "more")
            assert mailbox_of(store).discard(writer.key, 1)
            store = self.reopen(store)
            assert send(store, writer, "m5") == 5
            with pytest.raises(MailboxFull):
                send(store, writer, "more")

    def test_a_mailbox_is_restored_with_its_numbers(self, store: ClaimStore) -> None:
        # For copies: the copy continues where the mailbox was, and is due as it would be.
        writer, copy = running(store, "a"), waiting(store, "b", 2, waiting_topics=(("go", 1),))
        for number in range(1, 6):
            send(store, writer, f"m{number}")
        writer.append(store, consumes=(1,))
        mailbox = mailbox_of(store)
        assert mailbox.discard(writer.key, 5)
        messages, marks = mailbox.unread(writer.key), mailbox.marks(writer.key)
        mailbox.restore(copy.key, (), marks)
        assert claimed(store) == []
        mailbox.restore(copy.key, messages[1:])
        assert claimed(store) == ["b"]
        for _ in range(2):
            mailbox.restore(copy.key, messages, marks)
            store = self.reopen(store)
            mailbox = mailbox_of(store)
            assert list(mailbox.unread(copy.key)) == list(messages)
            assert mailbox.marks(copy.key) == marks
        assert mailbox.send(copy.key, "go", "m1", b"x").reused
        assert send(store, copy, "m6") == 6
        copy.append(store, consumes=(2, 6))
        last = queued(store, "c", 3)
        mailbox.restore(last.key, (), Marks(last=7))
        assert mailbox.marks(last.key) == Marks(last=7)
        assert send(store, last, "m1") == 8

    def test_a_closed_store_takes_no_message(self, store: ClaimStore) -> None:
        # As for every other call.
        writer = running(store, "a")
        mailbox = mailbox_of(store)
        store.close()
        for call in (
            lambda: mailbox.send(writer.key, "go", "m", b"x"),
            lambda: mailbox.unread(writer.key),
            lambda: mailbox.discard(writer.key, 1),
            lambda: mailbox.marks(writer.key),
            lambda: mailbox.restore(writer.key),
        ):
            with pytest.raises(Unavailable):
                call()


def mailbox_clauses() -> list[str]:
    return sorted(name for name in dir(MailboxContract) if name.startswith("test_"))


_Call = Callable[[Store, Writer], object]


def _at_once(first: _Call, second: _Call, store: Store, writer: Writer) -> tuple[bool, bool]:
    begin = Barrier(2, timeout=60)

    def run(call: _Call) -> bool:
        begin.wait()
        try:
            call(store, writer)
        except (Conflict, InvalidRequest):
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run, first)
        accepted = run(second)
        return other.result(), accepted


def _suspend(store: Store, writer: Writer) -> None:
    writer.append(store, thread=suspended(writer))


def _delete(store: Store, writer: Writer) -> None:
    assert store.delete(writer.key, head=2)


def _send(store: Store, writer: Writer) -> None:
    send(store, writer, "m")
