from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import msgspec.structs
import pytest

from milecastle.errors import Conflict, InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus
from milecastle.ports.claims import ClaimStore, waiting_inputs
from milecastle.ports.mailbox import INPUTS, NewRun, Sent
from milecastle.ports.store import Store
from milecastle.testing.contract_claims import LANE, ClaimHooks, a_line, names, queued
from milecastle.testing.contract_mailbox import mailbox_of
from milecastle.testing.entries import Writer, a_key, a_run, make_id

_ENDED: Sequence[RunStatus] = ("completed", "cancelled")
_STOPPED: Sequence[RunStatus] = ("failed", "interrupted")
_MEETINGS = 40


class InputClauses(ClaimHooks):
    """Rule 8: inputs wait in their order, and the thread is due when it is free for the next."""

    def test_inputs_wait_in_their_order(self, store: ClaimStore) -> None:
        # Rule 8: with the records of their runs, and also after a crash.
        writer = queued(store, "a", worker="one")
        runs = [enqueued(store, writer, number) for number in (5, 3, 4)]
        store = self.reopen(store)
        waiting = waiting_inputs(store, writer.key)
        assert [one.mark for one in waiting] == [run.run_id for run in runs]
        assert [one.payload for one in waiting] == [b"input 5", b"input 3", b"input 4"]
        assert waiting_inputs(store, writer.key, 2) == waiting[:2]
        assert list(waiting_inputs(store, a_key("a", "elsewhere"))) == []
        assert [store.run(writer.key, run.run_id) for run in runs] == runs

    def test_a_run_is_enqueued_once(self, store: ClaimStore) -> None:
        # Rule 8: a call that is repeated, also after its input was applied, writes nothing.
        writer = queued(store, "a", worker="one", status="running")
        run = enqueued(store, writer, 5)
        assert enqueue(store, run).reused
        writer.append(store, thread=a_line(writer), runs=(run,), consumes=(1,))
        assert enqueue(store, run, unless=run.input_digest).reused
        assert inputs_of(store, writer.key) == []
        assert [each.run_id for each in store.runs(writer.key)] == [run.run_id, writer.run.run_id]

    def test_an_input_that_a_run_has_is_not_enqueued(self, store: ClaimStore) -> None:
        # Rule 8: the newest run that has it is compared, whatever became of it.
        writer = queued(store, "a", worker="one", status="running")
        first = waiting_run(writer, 5, input_digest="key")
        assert enqueue(store, first, unless="key").number == 1
        again = waiting_run(writer, 6, input_digest="key")
        ended = msgspec.structs.replace(first, status="completed")
        for _ in range(2):
            for besides in (None, writer.run.run_id):
                refused = enqueue(store, again, unless="key", besides=besides)
                assert (refused.number, refused.reused) == (0, True)
            if inputs_of(store, writer.key):
                writer.append(store, thread=a_line(writer), runs=(ended,), consumes=(1,))
        assert inputs_of(store, writer.key) == []
        assert store.run(writer.key, again.run_id) is None
        assert enqueue(store, again, unless="key", besides=first.run_id).number == 2
        other = waiting_run(writer, 7, input_digest="other")
        assert enqueue(store, other, unless="other").number == 3
        assert enqueue(store, waiting_run(writer, 8, input_digest="key")).number == 4
        assert inputs_of(store, writer.key) == [again.run_id, other.run_id, make_id(8)]

    def test_of_one_input_that_is_enqueued_and_started_at_once_one_wins(
        self, store: ClaimStore
    ) -> None:
        # Rule 8: many times, from two threads; a run with that input is recorded once.
        with ThreadPoolExecutor(1) as pool:
            for number in range(1, _MEETINGS + 1):
                writer = queued(store, f"{number}", number, worker="one", status="running")
                begin = Barrier(2, timeout=60)
                started = pool.submit(_start, store, writer, begin)
                begin.wait()
                waiting = waiting_run(writer, 2 * _MEETINGS + number, input_digest="key")
                is_first = enqueue(store, waiting, unless="key").number > 0
                assert started.result() is not is_first
                (run,) = (one for one in store.runs(writer.key) if one.input_digest == "key")
                assert (run.run_id == waiting.run_id) is is_first

    def test_the_end_of_a_run_makes_its_thread_due(self, store: ClaimStore) -> None:
        # Rule 8: in its lane, also if the line that ends the run names none.
        for number, status in enumerate(_ENDED, 1):
            writer = queued(store, status, number, worker="one", status="running")
            enqueued(store, writer, 5)
            assert store.claim("two", [LANE], limit=9) == []
            writer.append(store, thread=a_line(writer, status=status, lane="", due_at=None))
            assert names(store.claim("two", [LANE], limit=9)) == [status]

    def test_an_input_waits_behind_a_run_that_stopped(self, store: ClaimStore) -> None:
        # Rule 8: until that has completed or was cancelled.
        for number, status in enumerate(_STOPPED, 1):
            writer = queued(store, status, number, worker="one", status="running")
            enqueued(store, writer, 5)
            writer.append(store, thread=a_line(writer, status=status, due_at=None))
            enqueued(store, writer, 6)
            assert store.claim("two", [LANE], limit=9) == []
            assert len(inputs_of(store, writer.key)) == 2

    def test_an_input_behind_a_run_that_sleeps_is_due_when_it_wakes(
        self, store: ClaimStore
    ) -> None:
        # Rule 8: also if the line of a caller that does not work for the fleet has no time.
        writer = queued(store, "a", worker="one", status="running")
        enqueued(store, writer, 5)
        line = a_line(writer, status="sleeping", lane="", due_at=None, wake_at=7)
        writer.append(store, thread=line)
        assert names(store.claim("two", [LANE], limit=9)) == ["a"]

    def test_an_input_makes_a_free_thread_due(self, store: ClaimStore) -> None:
        # Rule 8: the run has completed before it came.
        writer = queued(store, "a", worker="one", status="running")
        writer.append(store, thread=a_line(writer, status="completed", due_at=None))
        enqueued(store, writer, 5)
        assert names(store.claim("two", [LANE], limit=9)) == ["a"]

    def test_a_batch_consumes_the_input_that_it_applies(self, store: ClaimStore) -> None:
        # Rule 8: and no other; if it is refused, the input stays.
        writer = queued(store, "a", worker="one", status="running")
        runs = [enqueued(store, writer, number) for number in (5, 6)]
        late = writer.batch(writer.plan(), thread=a_line(writer), consumes=(2,))
        taken = a_line(writer, status="running", due_at=0, worker="one")
        writer.append(store, thread=taken, consumes=(1,))
        with pytest.raises(Conflict):
            store.commit(late)
        assert inputs_of(store, writer.key) == [runs[1].run_id]
        ended = a_line(writer, status="completed", due_at=None)
        writer.append(store, thread=ended, consumes=(2,))
        assert inputs_of(store, writer.key) == []
        assert store.claim("two", [LANE], limit=9) == []

    def test_a_restored_input_makes_a_free_thread_due(self, store: ClaimStore) -> None:
        # Rule 8: for copies; it has its number, and delays no thread that is due.
        writer = queued(store, "a", worker="one", status="running")
        enqueued(store, writer, 5)
        waiting = waiting_inputs(store, writer.key)
        free = queued(store, "b", 2, status="completed", due_at=None)
        due = queued(store, "c", 3, status="completed", due_at=5)
        for copy in (free, due):
            mailbox_of(store).restore(copy.key, waiting)
            assert waiting_inputs(store, copy.key) == waiting
        assert names(store.claim("two", [LANE], limit=9)) == ["c", "b"]
        for copy in (free, due):
            copy.append(store, thread=a_line(copy, status="completed", due_at=None), consumes=(1,))
        assert store.claim("two", [LANE], limit=9) == []

    def test_messages_are_no_inputs(self, store: ClaimStore) -> None:
        # Rule 8: an unread one makes no free thread due, and keeps it in no lane.
        writer = queued(store, "a", worker="one", status="running")
        run = enqueued(store, writer, 5)
        assert mailbox_of(store).send(writer.key, "go", "m", b"x").number == 2
        assert inputs_of(store, writer.key) == [run.run_id]
        ended = a_line(writer, status="completed", lane="", due_at=None)
        writer.append(store, thread=ended, consumes=(1,))
        assert store.thread(writer.key) == ended
        assert store.delete(writer.key, head=2)

    def test_a_thread_in_no_lane_takes_no_input(self, store: ClaimStore) -> None:
        # Rule 8: no worker would find it, nor one that does not exist.
        writer = queued(store, "a", lane="", due_at=None)
        assert enqueue(store, waiting_run(writer, 5)).number == 0
        missing = a_key("b")
        with pytest.raises(InvalidRequest):
            enqueue(store, waiting_run(Writer(missing), 5))
        for key in (writer.key, missing):
            assert inputs_of(store, key) == []
            assert store.run(key, make_id(5)) is None

    def test_inputs_are_deleted_with_their_thread(self, store: ClaimStore) -> None:
        # Rule 8: one that is created again has none of them.
        writer = queued(store, "a")
        enqueued(store, writer, 5)
        store.delete(writer.key)
        assert inputs_of(store, writer.key) == []
        queued(store, "a", 2, status="completed", due_at=None)
        assert inputs_of(store, writer.key) == []
        assert store.claim("one", [LANE], limit=9) == []

    def test_a_thread_is_not_deleted_at_a_head_while_inputs_wait(self, store: ClaimStore) -> None:
        # Rule 8: an input writes no entry, so the head alone would not show it.
        writer = queued(store, "a", worker="one", status="running")
        run = enqueued(store, writer, 5)
        id = writer.entries[1].id
        heads: list[dict[str, Any]] = [{"head": 1}, {"head": 1, "head_id": id}, {"head_id": id}]
        for head in heads:
            with pytest.raises(Conflict):
                store.delete(writer.key, **head)
        assert inputs_of(store, writer.key) == [run.run_id]
        assert store.head(writer.key) is not None
        writer.append(store, thread=a_line(writer), consumes=(1,))
        assert store.delete(writer.key, head=2)

    def test_an_input_and_who_deletes_its_thread_do_not_both_win(self, store: ClaimStore) -> None:
        # Rule 8: many times, from two threads; an input that was accepted is there.
        with ThreadPoolExecutor(1) as pool:
            for number in range(1, _MEETINGS + 1):
                writer = queued(store, f"{number}", number, worker="one", status="running")
                begin = Barrier(2, timeout=60)
                deleted = pool.submit(_delete, store, writer, begin)
                begin.wait()
                try:
                    waiting = [enqueued(store, writer, _MEETINGS + number).run_id]
                except InvalidRequest:
                    waiting = []
                assert deleted.result() is not bool(waiting)
                assert inputs_of(store, writer.key) == waiting

    def test_an_input_that_meets_the_end_of_a_run_is_not_forgotten(self, store: ClaimStore) -> None:
        # Rule 8: whoever comes second sees the other; many times, from two threads.
        with ThreadPoolExecutor(1) as pool:
            for number in range(1, _MEETINGS + 1):
                writer = queued(store, f"{number}", number, worker="one", status="running")
                begin = Barrier(2, timeout=60)
                ended = pool.submit(_end, store, writer, begin)
                begin.wait()
                enqueued(store, writer, _MEETINGS + number)
                ended.result()
                assert names(store.claim("two", [LANE], limit=9)) == [f"{number}"]


def _end(store: ClaimStore, writer: Writer, begin: Barrier) -> None:
    begin.wait()
    writer.append(store, thread=a_line(writer, status="completed", due_at=None))


def _start(store: ClaimStore, writer: Writer, begin: Barrier) -> bool:
    run = a_run(writer.key, _MEETINGS + writer.run.started_at, input_digest="key")
    begin.wait()
    try:
        writer.append(store, thread=a_line(writer), runs=(run,), unless="key")
    except Conflict:
        return False
    return True


def _delete(store: ClaimStore, writer: Writer, begin: Barrier) -> bool:
    begin.wait()
    try:
        return store.delete(writer.key, head=1)
    except Conflict:
        return False


def waiting_run(writer: Writer, number: int, **changes: Any) -> RunRecord:
    run = a_run(writer.key, number, **changes)
    return msgspec.structs.replace(run, status="queued", ended_at=None)


def enqueue(store: Store, record: RunRecord, **more: Any) -> Sent:
    """Let an input wait. The payload ends with the number of the run, in its id."""
    payload = b"input %d" % int(record.run_id[-12:], 16)
    run = NewRun(record=record, **more)
    return mailbox_of(store).send(record.key, INPUTS, record.run_id, payload, record.graph, run)


def enqueued(store: Store, writer: Writer, number: int) -> RunRecord:
    record = waiting_run(writer, number)
    sent = enqueue(store, record)
    assert sent.number
    assert not sent.reused
    return record


def inputs_of(store: Store, key: ThreadKey) -> list[str]:
    return [one.mark for one in waiting_inputs(store, key)]
