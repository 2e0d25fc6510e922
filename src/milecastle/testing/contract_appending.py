"""Clauses on appending: the fence, all or nothing, and many writers to one log."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Barrier, Event

import msgspec.structs
import pytest

from milecastle.errors import Conflict
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Kind
from milecastle.ports.store import Batch, Store
from milecastle.testing.contract_hooks import ContractHooks, everything_of
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import (
    Writer,
    a_failure,
    a_key,
    a_result,
    a_run,
    an_entry,
    make_id,
    state_of,
)
from milecastle.testing.races import race_in_threads, switching_often

SECOND = "b" * 32


class AppendingClauses(ContractHooks):
    """Rules 1 and 2."""

    def test_a_thread_that_was_never_written_is_empty(self, store: Store) -> None:
        # Rule 1: the head of nothing is 0.
        key = a_key()
        assert store.read(key) is None
        assert store.read(key, 1) is None
        assert list(store.history(key)) == []
        assert list(store.entries(key)) == []
        assert list(store.runs(key)) == []
        assert list(store.threads(key.tenant)) == []

    def test_entries_are_appended_one_above_the_other(self, store: Store) -> None:
        # Rule 1: ``head + 1`` is appended.
        writer = Writer().begin(store, 5)
        assert [entry.seq for entry in store.history(writer.key)] == [5, 4, 3, 2, 1]

    def test_a_batch_may_hold_several_entries(self, store: Store) -> None:
        # Rule 1: a batch is appended whole.
        writer = Writer().begin(store)
        store.commit(writer.batch(an_entry(2), an_entry(3), an_entry(4)))
        assert [entry.seq for entry in store.history(writer.key)] == [4, 3, 2, 1]

    def test_several_entries_may_follow_one_that_was_just_written(self, store: Store) -> None:
        # Rule 1: also if the store writes single entries in a shorter way.
        writer = Writer().begin(store, 2)
        first = writer.plan()
        writer.keep(first)
        second = writer.plan()
        writer.keep(second)
        below = writer.entries[first.seq - 1]
        entries = (first, second)
        store.commit(Batch(key=writer.key, head=below.seq, head_id=below.id, entries=entries))
        assert [entry.seq for entry in store.history(writer.key)] == [4, 3, 2, 1]
        writer.append(store)
        assert [entry.seq for entry in store.history(writer.key)] == [5, 4, 3, 2, 1]

    def test_a_first_batch_may_hold_entries_of_several_runs(self, store: Store) -> None:
        # Rule 4: a copy begins a thread so.
        key = a_key()
        entries = tuple(
            an_entry(seq, run_id=make_id(seq), fingerprint=str(seq) * 32) for seq in (1, 2, 3)
        )
        store.commit(Batch(key=key, head=0, entries=entries, runs=(a_run(key=key),)))
        kept = list(store.entries(key))
        assert [(entry.run_id, entry.fingerprint) for entry in kept] == [
            (entry.run_id, entry.fingerprint) for entry in entries
        ]

    def test_a_taken_seq_is_refused(self, store: Store) -> None:
        # Rule 1: never a lost update.
        writer = Writer().begin(store, 3)
        for seq in (1, 2, 3):
            late = an_entry(seq, id=make_id(99))
            self._refuse(store, Batch(key=writer.key, head=seq - 1, entries=(late,)))

    def test_a_gap_is_refused(self, store: Store) -> None:
        # Rule 1: never a gap.
        writer = Writer().begin(store, 2)
        for seq in (4, 5, 1000):
            self._refuse(store, Batch(key=writer.key, head=seq - 1, entries=(an_entry(seq),)))

    def test_a_thread_begins_with_seq_one(self, store: Store) -> None:
        # Rule 1: a first entry that is not 1 is refused.
        for seq in (-1, 0, 2, 3):
            self._refuse(store, Batch(key=a_key(), head=seq - 1, entries=(an_entry(seq),)))

    def test_an_entry_that_is_not_above_the_head_is_refused(self, store: Store) -> None:
        # Rule 1: the entries themselves are checked, not only the batch's fields.
        writer = Writer()
        for seq in (0, 2):
            self._refuse(store, writer.batch(an_entry(seq)))
        writer.begin(store, 2)
        for seq in (0, 1, 2, 4):
            self._refuse(store, writer.batch(an_entry(seq, id=make_id(99))))

    def test_a_second_entry_with_a_taken_seq_takes_the_first_with_it(self, store: Store) -> None:
        # Rules 1 and 2: nothing of such a batch remains.
        writer = Writer().begin(store, 2)
        for seq in (1, 2, 3):
            self._refuse(store, writer.batch(an_entry(3), an_entry(seq, id=make_id(99))))

    def test_a_second_entry_above_a_gap_takes_the_first_with_it(self, store: Store) -> None:
        # Rules 1 and 2: nothing of such a batch remains.
        writer = Writer().begin(store, 2)
        self._refuse(store, writer.batch(an_entry(3), an_entry(5)))

    def test_a_batch_without_entries_is_fenced_too(self, store: Store) -> None:
        # Rule 1: results and records of a writer that was overtaken are refused.
        writer = Writer().begin(store, 3)
        ended = msgspec.structs.replace(writer.run, status="completed", ended_at=9)
        for head in (0, 2, 4):
            self._refuse(store, Batch(key=writer.key, head=head, runs=(ended,)))
            self._refuse(store, Batch(key=writer.key, head=head, results=(a_result(head),)))
        self._refuse(store, Batch(key=a_key("another"), head=1, runs=(ended,)))

    def test_a_writer_of_a_thread_that_was_begun_anew_is_refused(self, store: Store) -> None:
        # Rules 1 and 10: the head has the same seq as before, but is a different entry.
        old = Writer(number=1).begin(store, 3)
        assert store.delete(old.key)
        new = Writer(old.key, 2).begin(store, 3)
        failed = msgspec.structs.replace(old.run, status="failed", ended_at=9)
        self._refuse(store, old.batch(old.plan()))
        self._refuse(store, old.batch(old.plan(SNAPSHOT)))
        self._refuse(store, old.batch(old.plan(), runs=(failed,)))
        self._refuse(store, old.batch(results=(a_result(3),)))
        self._refuse(store, old.batch(runs=(failed,), failure=a_failure(failed.run_id)))
        new.append(store)
        check_reads(store, new)

    def test_a_batch_without_entries_is_kept_at_the_head(self, store: Store) -> None:
        # Rule 1: it does not move the head.
        writer = Writer().begin(store, 2)
        ended = msgspec.structs.replace(writer.run, status="failed", ended_at=9)
        store.commit(writer.batch(runs=(ended,), failure=a_failure(ended.run_id)))
        assert store.run(writer.key, ended.run_id) == ended
        assert store.failure(writer.key, ended.run_id) == a_failure(ended.run_id)
        writer.append(store)
        assert [entry.seq for entry in store.history(writer.key)] == [3, 2, 1]

    def test_a_run_may_be_recorded_before_any_entry(self, store: Store) -> None:
        # Rule 1: the head of a thread that has only records is 0.
        writer = Writer()
        store.commit(writer.batch(runs=(writer.run,)))
        assert list(store.runs(writer.key)) == [writer.run]
        assert store.read(writer.key) is None
        writer.append(store)
        assert [entry.seq for entry in store.history(writer.key)] == [1]

    def test_a_batch_is_refused_if_a_run_has_its_input(self, store: Store) -> None:
        # Rule 1: a batch may say which input it is the first to have.
        writer = Writer().begin(store)
        first, again, other = (
            a_run(writer.key, number, input_digest=digest)
            for number, digest in ((5, "a"), (6, "a"), (7, "b"))
        )
        writer.append(store, runs=(first,), unless="a")
        late = writer.batch(writer.plan(), runs=(again,), unless="a")
        with pytest.raises(Conflict):
            store.commit(late)
        if store.commit_many is not None:
            assert isinstance(store.commit_many([late])[0], Conflict)
        assert store.run(writer.key, again.run_id) is None
        writer.append(store, runs=(other,), unless="b")
        writer.append(store, runs=(again,))
        assert store.find_run(writer.key, "a") == again

    def test_a_conflict_says_what_was_wanted_and_what_is(self, store: Store) -> None:
        # Rule 1: ``Conflict`` has the tenant, the thread, the seq wanted and the head.
        writer = Writer(a_key("contested", "owner")).begin(store, 3)
        for head in (0, 2, 6):
            entry = an_entry(head + 1, id=make_id(99))
            with pytest.raises(Conflict) as caught:
                store.commit(Batch(key=writer.key, head=head, entries=(entry,)))
            error = caught.value
            assert (error.tenant, error.thread) == ("owner", "contested")
            assert (error.expected, error.head) == (head + 1, 3)

    def test_a_refused_writer_may_read_and_try_again(self, store: Store) -> None:
        # Rule 1: after a conflict a writer that knows the head can still append.
        writer = Writer().begin(store, 2)
        self._refuse(store, Batch(key=writer.key, head=1, entries=(an_entry(2, id=make_id(99)),)))
        writer.append(store)
        assert [entry.seq for entry in store.history(writer.key)] == [3, 2, 1]

    def test_a_batch_keeps_all_of_its_parts(self, store: Store) -> None:
        # Rule 2: entries, results, records, failure and manifest.
        writer = Writer()
        batch = self._full(writer, head=0)
        store.commit(batch)
        chain = store.read(writer.key)
        assert chain is not None
        assert chain.entries == (batch.entries[-1],)
        assert chain.results == batch.results
        assert list(store.runs(writer.key)) == list(reversed(batch.runs))
        assert store.failure(writer.key, make_id(2)) == batch.failure
        assert store.manifest(writer.key, SECOND) == b"manifest"

    def test_a_refused_batch_leaves_no_entry(self, store: Store) -> None:
        # Rule 2: all or nothing.
        writer = self._refuse_full_batches(store)
        assert [entry.seq for entry in store.history(writer.key)] == [2, 1]
        assert store.locate(writer.key, make_id(98)) is None
        assert store.locate(writer.key, make_id(99)) is None

    def test_a_refused_batch_leaves_no_result(self, store: Store) -> None:
        # Rule 2: all or nothing.
        writer = self._refuse_full_batches(store)
        chain = store.read(writer.key)
        assert chain is not None
        assert chain.results == ()

    def test_a_refused_batch_leaves_no_record(self, store: Store) -> None:
        # Rule 2: all or nothing.
        writer = self._refuse_full_batches(store)
        assert list(store.runs(writer.key)) == [writer.run]
        assert store.run(writer.key, make_id(2)) is None

    def test_a_refused_batch_leaves_no_failure(self, store: Store) -> None:
        # Rule 2: all or nothing.
        writer = self._refuse_full_batches(store)
        assert store.failure(writer.key, make_id(2)) is None

    def test_a_refused_batch_leaves_no_manifest(self, store: Store) -> None:
        # Rule 2: all or nothing.
        writer = self._refuse_full_batches(store)
        assert store.manifest(writer.key, SECOND) is None

    def test_a_refused_first_batch_leaves_no_thread(self, store: Store) -> None:
        # Rule 2: all or nothing.
        writer = Writer()
        self._refuse(store, self._full(writer, head=1))
        assert list(store.threads(writer.key.tenant)) == []
        assert store.delete(writer.key) is False

    def _refuse(self, store: Store, batch: Batch) -> None:
        before = everything_of(store, batch.key)
        with pytest.raises(Conflict):
            store.commit(batch)
        assert everything_of(store, batch.key) == before

    def _refuse_full_batches(self, store: Store) -> Writer:
        """Have batches with every part refused: taken, above a gap, broken in the middle."""
        writer = Writer().begin(store, 2)
        torn = self._full(writer, head=2)
        torn = msgspec.structs.replace(torn, entries=(torn.entries[0], an_entry(9)))
        for batch in (self._full(writer, head=1), self._full(writer, head=5), torn):
            with pytest.raises(Conflict):
                store.commit(batch)
        return writer

    def _full(self, writer: Writer, *, head: int) -> Batch:
        entries = (an_entry(head + 1, id=make_id(98)), an_entry(head + 2, id=make_id(99)))
        ended = msgspec.structs.replace(writer.run, status="superseded", ended_at=9)
        return Batch(
            key=writer.key,
            head=head,
            entries=entries,
            results=(a_result(head + 2),),
            runs=(ended, a_run(writer.key, 2, status="failed")),
            failure=a_failure(make_id(2)),
            manifest=(SECOND, b"manifest"),
        )


class RacingClauses(ContractHooks):
    """Rules 1 and 6, from several threads at once."""

    def test_of_racing_writers_one_wins_each_seq(self, store: Store) -> None:
        # Rule 1: the others get ``Conflict``, and nothing is lost.
        outcome = race_in_threads(store, a_key(), races=50, writers=4)
        assert outcome.problems(store) == []

    def test_writers_of_different_threads_do_not_meet(self, store: Store) -> None:
        # Rules 1 and 5: each continues as if it were alone.
        writers = [Writer(a_key(f"thread {number}"), number) for number in range(1, 7)]
        kinds: tuple[Kind, ...] = (DELTA, DELTA, ROLLUP, DELTA, SNAPSHOT) * 4
        with ThreadPoolExecutor(len(writers)) as pool:
            begun = [pool.submit(writer.begin(store).write, store, kinds) for writer in writers]
            for each in begun:
                each.result()
        for writer in writers:
            check_reads(store, writer)

    def test_a_writer_and_who_deletes_at_its_head_do_not_both_win(self, store: Store) -> None:
        # Rules 1 and 10: either the entry is there, or neither it nor the thread is.
        with ThreadPoolExecutor(2) as pool, switching_often():
            for number in range(1, 31):
                writer = Writer(a_key(f"contested {number}"), number).begin(store, 2)
                won = self._contest(pool, store, writer)
                head = store.read(writer.key)
                left = head.entries[-1].seq if head else 0
                assert (won, left) in (((True, False), 3), ((False, True), 0))

    def _contest(self, pool: Executor, store: Store, writer: Writer) -> tuple[bool, bool]:
        begin = Barrier(2, timeout=60)
        key, late = writer.key, writer.batch(writer.plan())
        append = pool.submit(self._wins, begin, lambda: store.commit(late))
        delete = pool.submit(self._wins, begin, lambda: store.delete(key, head=2))
        return append.result(), delete.result()

    def _wins(self, begin: Barrier, call: Callable[[], object]) -> bool:
        begin.wait()
        try:
            call()
        except Conflict:
            return False
        return True

    def test_what_is_read_beside_a_writer_is_whole(self, store: Store) -> None:
        # Rule 6: a reader sees some head, never half of one, and never an older one again.
        writer = Writer().begin(store)
        kinds: tuple[Kind, ...] = (DELTA, DELTA, ROLLUP) * 30
        done = Event()
        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(self._watch, store, writer, done) for _ in range(2)]
            try:
                writer.write(store, kinds)
            finally:
                done.set()
        for reader in readers:
            seen = reader.result()
            seqs = [seq for seq, _ in seen]
            assert seqs == sorted(seqs)
            assert [state for _, state in seen] == [writer.states[seq] for seq in seqs]

    def _watch(self, store: Store, writer: Writer, done: Event) -> list[tuple[int, bytes]]:
        seen: list[tuple[int, bytes]] = []
        while not (done.is_set() and seen):
            chain = store.read(writer.key)
            if chain is not None:
                seen.append((chain.entries[-1].seq, state_of(chain.entries)))
        return seen
