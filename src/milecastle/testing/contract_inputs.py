"""The clauses on inputs waiting until their thread is free."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import msgspec.structs
import pytest

from milecastle.errors import Conflict, InvalidRequest
from milecastle.model.run import RunRecord, RunStatus
from milecastle.ports.claims import ClaimStore
from milecastle.testing.contract_claims import LANE, ClaimHooks, a_line, names, queued
from milecastle.testing.entries import Writer, a_key, a_result, a_run

__all__ = ["InputClauses"]

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
        waiting = store.inputs(writer.key)
        assert [one.run_id for one in waiting] == [run.run_id for run in runs]
        assert [one.payload for one in waiting] == [b"input 5", b"input 3", b"input 4"]
        assert [one.mark for one in waiting] == ["mark 5", "mark 3", "mark 4"]
        assert store.inputs(writer.key, limit=2) == waiting[:2]
        assert store.inputs(a_key("a", "elsewhere")) == []
        assert [store.run(writer.key, run.run_id) for run in runs] == runs

    def test_a_mark_waits_once(self, store: ClaimStore) -> None:
        # Rule 8: the second call finds the first, and writes nothing; each thread has its own.
        writer, other = queued(store, "a"), queued(store, "b", 2)
        first = enqueued(store, writer, 5)
        again = waiting_run(writer, 6)
        assert store.enqueue(again, "mark 5", b"other") == first.run_id
        assert [one.payload for one in store.inputs(writer.key)] == [b"input 5"]
        assert store.run(writer.key, again.run_id) is None
        enqueued(store, other, 5)
        assert len(store.inputs(other.key)) == 1

    def test_a_run_is_enqueued_once(self, store: ClaimStore) -> None:
        # Rule 8: a call that is repeated after its input was applied writes nothing.
        writer = queued(store, "a", worker="one", status="running")
        run = enqueued(store, writer, 5)
        writer.append(store, thread=a_line(writer), runs=(run,), dequeues=run.run_id)
        assert store.enqueue(run, "mark 5", b"input 5") == run.run_id
        assert store.inputs(writer.key) == []
        assert store.enqueue(run, "mark 5", b"input 5", known=True) == run.run_id
        assert [one.run_id for one in store.inputs(writer.key)] == [run.run_id]
        assert [each.run_id for each in store.runs(writer.key)] == [run.run_id, writer.run.run_id]

    def test_an_input_that_a_run_has_is_not_enqueued(self, store: ClaimStore) -> None:
        # Rule 8: the newest run that has it is found, whatever became of it.
        writer = queued(store, "a", worker="one", status="running")
        first = waiting_run(writer, 5, input_digest="key")
        assert store.enqueue(first, "mark 5", b"", unless="key") == first.run_id
        ended = msgspec.structs.replace(first, status="completed")
        writer.append(store, thread=a_line(writer), runs=(ended,), dequeues=first.run_id)
        again = waiting_run(writer, 6, input_digest="key")
        assert store.enqueue(again, "mark 6", b"", unless="key") == first.run_id
        assert store.inputs(writer.key) == []
        assert store.run(writer.key, again.run_id) is None
        other = waiting_run(writer, 7, input_digest="other")
        assert store.enqueue(other, "mark 7", b"", unless="other") == other.run_id

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
                found = store.enqueue(waiting, "key", b"", unless="key")
                runs = [one for one in store.runs(writer.key) if one.input_digest == "key"]
                assert [one.run_id for one in runs] == [found]
                assert started.result() is (found != waiting.run_id)

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
            assert len(store.inputs(writer.key)) == 2

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

    def test_a_batch_removes_the_input_that_it_applies(self, store: ClaimStore) -> None:
        # Rule 8: and no other; if it is refused, the input stays.
        writer = queued(store, "a", worker="one", status="running")
        runs = [enqueued(store, writer, number) for number in (5, 6)]
        late = writer.batch(writer.plan(), thread=a_line(writer), dequeues=runs[1].run_id)
        taken = a_line(writer, status="running", due_at=0, worker="one")
        writer.append(store, thread=taken, dequeues=runs[0].run_id)
        with pytest.raises(Conflict):
            store.commit(late)
        assert [one.run_id for one in store.inputs(writer.key)] == [runs[1].run_id]
        ended = a_line(writer, status="completed", due_at=None)
        writer.append(store, thread=ended, dequeues=runs[1].run_id)
        assert store.inputs(writer.key) == []
        assert store.claim("two", [LANE], limit=9) == []

    def test_a_batch_that_removes_an_input_has_a_line(self, store: ClaimStore) -> None:
        # Rule 8: otherwise it is refused, whatever else it has, and the input stays.
        writer = queued(store, "a", worker="one", status="running")
        run = enqueued(store, writer, 5)
        parts: list[dict[str, Any]] = [{}, {"results": (a_result(1),)}, {"runs": (run,)}]
        batches = [writer.batch(thread=None, dequeues=run.run_id, **each) for each in parts]
        batches.append(writer.batch(writer.plan(), dequeues=run.run_id))
        for batch in batches:
            with pytest.raises(InvalidRequest):
                store.commit(batch)
            if store.commit_many is not None:
                with pytest.raises(InvalidRequest):
                    store.commit_many([batch])
        assert [one.run_id for one in store.inputs(writer.key)] == [run.run_id]
        assert list(store.results(writer.key)) == []
        writer.append(store, thread=a_line(writer), dequeues=run.run_id)
        assert store.inputs(writer.key) == []

    def test_a_thread_in_no_lane_takes_no_input(self, store: ClaimStore) -> None:
        # Rule 8: no worker would find it, nor one that does not exist.
        writer = queued(store, "a", lane="", due_at=None)
        for key in (writer.key, a_key("b")):
            with pytest.raises(InvalidRequest):
                store.enqueue(waiting_run(Writer(key), 5), "mark", b"input")
            assert store.inputs(key) == []

    def test_inputs_are_deleted_with_their_thread(self, store: ClaimStore) -> None:
        # Rule 8: one that is created again has none of them.
        writer = queued(store, "a")
        enqueued(store, writer, 5)
        store.delete(writer.key)
        assert store.inputs(writer.key) == []
        queued(store, "a", 2, status="completed", due_at=None)
        assert store.inputs(writer.key) == []
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
        assert [one.run_id for one in store.inputs(writer.key)] == [run.run_id]
        assert store.head(writer.key) is not None
        writer.append(store, thread=a_line(writer), dequeues=run.run_id)
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
                assert [one.run_id for one in store.inputs(writer.key)] == waiting

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
    """A run queued behind another."""
    run = a_run(writer.key, number, **changes)
    return msgspec.structs.replace(run, status="queued", ended_at=None)


def enqueued(store: ClaimStore, writer: Writer, number: int) -> RunRecord:
    """A run with a waiting input."""
    record = waiting_run(writer, number)
    found = store.enqueue(record, f"mark {number}", b"input %d" % number)
    assert found == record.run_id
    return record
