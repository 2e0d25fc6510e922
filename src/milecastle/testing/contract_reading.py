from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import perf_counter
from typing import get_args

import msgspec.structs

from milecastle.model.checkpoint import (
    DELTA,
    HOLDING,
    ROLLUP,
    SNAPSHOT,
    Entry,
    Kind,
    Source,
    TaskResult,
)
from milecastle.model.run import ThreadInfo
from milecastle.ports.store import Batch, Store
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.entries import (
    Writer,
    a_key,
    a_result,
    a_run,
    an_entry,
    chain_of,
    make_id,
    state_of,
)

LONG = ((DELTA,) * 4 + (ROLLUP,)) * 5 + (SNAPSHOT, ROLLUP) + ((DELTA,) * 2 + (ROLLUP,)) * 3


def check_reads(store: Store, writer: Writer) -> None:
    """Assert every remaining checkpoint reads back, with its chain and its state."""
    for seq in writer.entries:
        chain = store.read(writer.key, seq)
        assert chain is not None, f"seq {seq} is not there"
        assert chain.entries == chain_of(writer.entries, seq), f"the chain of {seq}"
        assert state_of(chain.entries) == writer.states[seq], f"the state at {seq}"
    head = store.read(writer.key)
    assert (head.entries[-1].seq if head else 0) == writer.head


class ReadingClauses(ContractHooks):
    """Rules 7 and 8."""

    def test_a_snapshot_is_read_alone(self, store: Store) -> None:
        # Rule 7: nothing before a snapshot is needed.
        writer = Writer().begin(store, 3)
        entry = writer.append(store, SNAPSHOT)
        chain = store.read(writer.key)
        assert chain is not None
        assert chain.entries == (entry,)

    def test_a_delta_is_read_with_all_from_its_snapshot_on(self, store: Store) -> None:
        # Rule 7: oldest first; the last is the checkpoint.
        writer = Writer().begin(store, 4)
        chain = store.read(writer.key)
        assert chain is not None
        assert [entry.seq for entry in chain.entries] == [1, 2, 3, 4]

    def test_a_rollup_stands_for_the_deltas_before_it(self, store: Store) -> None:
        # Rule 7: snapshot, rollups, deltas after the newest rollup.
        writer = Writer().begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA, ROLLUP, DELTA))
        chain = store.read(writer.key)
        assert chain is not None
        assert [entry.seq for entry in chain.entries] == [1, 4, 6, 7]

    def test_every_older_checkpoint_is_read_as_it_was(self, store: Store) -> None:
        # Rule 7: what came later does not show.
        writer = Writer().begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA, SNAPSHOT, DELTA))
        check_reads(store, writer)

    def test_a_long_history_is_read_at_every_seq(self, store: Store) -> None:
        # Rule 7: with many rollups and several snapshots.
        writer = Writer().begin(store).write(store, LONG * 3)
        check_reads(store, writer)
        with self.reopened(store) as again:
            check_reads(again, writer)

    def test_a_fork_is_read_from_where_it_branched_off(self, store: Store) -> None:
        # Rule 7: a fork is a snapshot whose parent is further back.
        writer = Writer().begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA))
        fork = writer.append(store, at=2, source="fork")
        kinds: tuple[Kind, ...] = (DELTA, ROLLUP, DELTA)
        writer.write(store, kinds)
        assert fork.parent_id == writer.entries[2].id
        assert writer.states[writer.head].startswith(writer.states[2])
        assert not writer.states[writer.head].startswith(writer.states[3])
        check_reads(store, writer)

    def test_many_threads_are_read_as_each_by_itself(self, store: Store) -> None:
        # Rule 7, if the store has ``read_many``: the same chains, results and records.
        if store.read_many is None:
            return
        long = Writer(a_key("long \U0001f3f0"), 1).begin(store).write(store, LONG)
        short = Writer(a_key("short", "other"), 2).begin(store, 2)
        short.append(store, results=(a_result(3), a_result(3, "second")))
        again = Writer(a_key("again"), 3).begin(store, 9)
        store.delete(again.key)
        again = Writer(a_key("again"), 4).begin(store, 3)
        cut = Writer(a_key("cut"), 5).begin(store).write(store, LONG)
        cut.prune(store, 20)
        keys = [writer.key for writer in (short, long, again, cut)]
        found = store.read_many([*keys[:2], a_key("missing"), *keys[2:]])
        assert {*found} == {*keys}
        for key, (chain, record) in found.items():
            single = store.read(key)
            assert single is not None
            assert chain.entries == single.entries
            assert {*chain.results} == {*single.results}
            assert record == store.run(key, chain.entries[-1].run_id)
        assert store.read_many([]) == {}

    def test_a_head_is_opened_with_the_record_of_its_run(self, store: Store) -> None:
        # Rule 7: the chain that ``read`` finds, and the record that ``run`` finds, if any.
        short = Writer(a_key("short")).begin(store)
        store.commit(short.batch(results=(a_result(1, "a"), a_result(1, "b"))))
        cut = Writer(a_key("cut"), 2).begin(store).write(store, LONG)
        cut.prune(store, 20)
        later = a_run(short.key, 3, status="queued")
        store.commit(short.batch(runs=(later,), thread=ThreadInfo.of(later)))
        bare = Writer(a_key("bare"), 4)
        bare.append(store)
        for writer, record in ((short, short.run), (cut, cut.run), (bare, None)):
            opened, chain = store.open(writer.key), store.read(writer.key)
            assert opened is not None
            assert chain is not None
            assert opened.chain.entries == chain.entries
            assert {*opened.chain.results} == {*chain.results}
            assert opened.record == record
        assert store.open(a_key("missing")) is None

    def test_a_head_and_its_record_are_of_one_moment(self, store: Store) -> None:
        # Rule 6: a reader beside a writer finds no head with the record of another.
        writer, done = Writer().begin(store), Event()

        def step(number: int) -> None:
            record = msgspec.structs.replace(writer.run, metadata={"step": str(number)})
            writer.append(store, runs=(record,))

        def watch() -> list[tuple[int, str]]:
            seen: list[tuple[int, str]] = []
            while not (done.is_set() and seen):
                opened = store.open(writer.key)
                assert opened is not None
                assert opened.record is not None
                step = opened.record.metadata.get("step", "1")
                seen.append((opened.chain.entries[-1].seq, step))
            return seen

        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(watch)
            try:
                for number in range(2, 62):
                    step(number)
            finally:
                done.set()
        assert [each for each in reader.result() if str(each[0]) != each[1]] == []

    def test_missing_item_is_none(self, store: Store) -> None:
        # Rule 7: below the first and above the head there is nothing.
        writer = Writer().begin(store, 3)
        for seq in (-1, 0, 4, 5, 10**9):
            assert store.read(writer.key, seq) is None
        assert store.read(a_key("another"), 1) is None

    def test_a_checkpoint_is_located_by_its_id(self, store: Store) -> None:
        # Rule 7: in its own thread, whatever its kind.
        writer = Writer().begin(store).write(store, (DELTA, ROLLUP, SNAPSHOT, DELTA))
        other = Writer(a_key("another"), 2).begin(store, 2)
        for entry in writer.entries.values():
            assert store.locate(writer.key, entry.id) == entry.seq
            assert store.locate(other.key, entry.id) is None
        assert store.locate(writer.key, other.entries[1].id) is None
        assert store.locate(writer.key, make_id(0)) is None
        assert store.locate(a_key("nowhere"), make_id(1)) is None

    def test_head_is_the_newest_entry_without_its_payload(self, store: Store) -> None:
        # Rule 7: whatever wrote it, whatever its kind, and also when read again.
        writer = Writer()
        assert store.head(writer.key) is None
        writer.begin(store, 2)
        seen = self.reopen(store)
        for kind in (DELTA, ROLLUP, DELTA, SNAPSHOT, DELTA):
            writer.write(store, (kind,))
            newest = msgspec.structs.replace(writer.entries[writer.head], payload=b"")
            assert store.head(writer.key) == newest
            assert seen.head(writer.key) == newest
        store.delete(writer.key)
        assert store.head(writer.key) is None
        if seen is not store:
            seen.close()

    def test_results_are_read_without_the_chain(self, store: Store) -> None:
        # Rule 8: as they come with the head: replaced, held, and ended with the step.
        writer = Writer()
        assert list(store.results(writer.key)) == []
        writer.begin(store, 2)
        store.commit(writer.batch(results=(a_result(2, "a", b"1"), a_result(2, "b"))))
        store.commit(writer.batch(results=(a_result(2, "a", b"22"),)))
        assert self._rows(store, writer) == [a_result(2, "a", b"22"), a_result(2, "b")]
        writer.append(store, source="answer", results=(a_result(3, "c"),))
        assert [row.task for row in self._rows(store, writer)] == ["a", "b", "c"]
        assert self._rows(store, writer) == self._results(store, writer)
        writer.append(store)
        assert list(store.results(writer.key)) == []

    def test_a_state_is_read_without_results(self, store: Store) -> None:
        # Rules 7 and 8: of every checkpoint the chain, of the head too without its results.
        writer = Writer().begin(store).write(store, (DELTA, ROLLUP, DELTA))
        assert store.read_state(a_key("missing")) is None
        store.commit(writer.batch(results=(a_result(writer.head),)))
        for seq in (None, *writer.entries):
            found, whole = store.read_state(writer.key, seq), store.read(writer.key, seq)
            assert found is not None
            assert whole is not None
            assert found.entries == whole.entries
            assert found.results == ()
        assert store.read_state(writer.key, writer.head + 1) is None

    def test_results_are_counted_by_their_task(self, store: Store) -> None:
        # Rule 8: a task and its items, not others whose names begin alike; ended with the step.
        writer = Writer()
        assert store.count_results(writer.key, "2:a") == 0
        writer.begin(store, 2)
        items = tuple(a_result(2, f"2:a#{number}") for number in range(12))
        others = ("2:a", "2:a b#0", "2:a!", "2:aa", "2:a#h0", "12:a#0", "2:a\U0001f3f0#3", "2!a")
        store.commit(writer.batch(results=(*items, *(a_result(2, name) for name in others))))
        store.commit(Writer(a_key("other"), 2).begin(store).batch(results=(a_result(1, "2:a#1"),)))
        counts = {name: store.count_results(writer.key, name) for name in ("2:a", *others)}
        assert counts == {**dict.fromkeys(others, 1), "2:a": 13}
        assert store.count_results(writer.key, "2:a b") == 1
        assert store.count_results(writer.key, "2:a\U0001f3f0") == 1
        writer.append(store, source="interrupt")
        writer.append(store, source="answer", results=(a_result(4, "2:a#12"),))
        assert store.count_results(writer.key, "2:a") == 14
        store.commit(writer.batch(results=(a_result(4, "2:a#12", b"again"),)))
        assert store.count_results(writer.key, "2:a") in (14, 15)
        writer.append(store)
        assert store.count_results(writer.key, "2:a") == 0

    def test_results_come_with_the_head(self, store: Store) -> None:
        # Rule 8: those of one commit and of several.
        writer = Writer().begin(store, 2)
        results = [a_result(2, f"task {number}") for number in range(5)]
        store.commit(writer.batch(results=tuple(results[:2])))
        for result in results[2:]:
            store.commit(writer.batch(results=(result,)))
        assert self._results(store, writer) == results
        assert self._results(store, writer, 2) == results

    def test_results_come_with_no_older_checkpoint(self, store: Store) -> None:
        # Rule 8: only the chain of the head has results.
        writer = Writer().begin(store, 3)
        store.commit(writer.batch(results=(a_result(3),)))
        assert self._results(store, writer, 1) == []
        assert self._results(store, writer, 2) == []

    def test_results_end_with_the_step(self, store: Store) -> None:
        # Rule 8: once the step is committed they are gone, from every checkpoint.
        sources = [source for source in get_args(Source) if source not in HOLDING]
        assert len(sources) >= 4
        for number, source in enumerate(sources, 1):
            writer = Writer(a_key(source), number).begin(store, 2)
            store.commit(writer.batch(results=(a_result(2),)))
            writer.append(store, source=source)
            assert self._results(store, writer) == []
            assert self._results(store, writer, 2) == []

    def test_results_outlast_what_holds_the_step(self, store: Store) -> None:
        # Rule 8: a takeover, an answer or a wake-up does not repeat what was finished.
        for number, source in enumerate(sorted(HOLDING), 1):
            writer = Writer(a_key(source), number).begin(store, 2)
            store.commit(writer.batch(results=(a_result(2, "first"),)))
            writer.append(store, source=source)
            assert self._results(store, writer) == [a_result(2, "first")]
            assert self._results(store, writer, 2) == []
            writer.append(store, source=source, results=(a_result(4, "second"),))
            for other in sorted(HOLDING):
                writer.append(store, source=other)
            assert self._results(store, writer) == [a_result(2, "first"), a_result(4, "second")]
            writer.append(store)
            writer.append(store, source=source)
            assert self._results(store, writer) == []

    def test_a_later_result_of_a_task_replaces_the_earlier(self, store: Store) -> None:
        # Rule 8: under the same head, under a later one, in company; each task is there once.
        writer = Writer().begin(store, 2)
        store.commit(writer.batch(results=(a_result(2, "a", b"1"), a_result(2, "b", b"1"))))
        store.commit(writer.batch(results=(a_result(2, "a", b"22"),)))
        assert self._results(store, writer) == [a_result(2, "a", b"22"), a_result(2, "b", b"1")]
        writer.append(store, source="interrupt")
        both = (a_result(3, "c", b"3"), a_result(3, "b", b"333"))
        store.commit(writer.batch(results=both))
        expected = [a_result(2, "a", b"22"), both[1], both[0]]
        assert self._results(store, writer) == expected
        writer.append(store, source="answer", results=(a_result(4, "a", b""),))
        expected[0] = a_result(4, "a", b"")
        assert self._results(store, writer) == expected
        with self.reopened(store) as again:
            assert self._results(again, writer) == expected

    def test_adding_results_costs_what_is_added_and_not_what_is_there(self, store: Store) -> None:
        # Rule 8: 128 onto 10,000 of the same head; a wide step must not cost its square.
        few, many = Writer(a_key("few"), 1).begin(store, 2), Writer(a_key("many"), 2).begin(store)
        for number in range(10):
            results = (a_result(1, f"task {number * 1000 + each}") for each in range(1000))
            store.commit(many.batch(results=tuple(results)))
        onto_none: list[float] = []
        onto_many: list[float] = []
        for number in range(25):  # on a busy machine, few of them are not disturbed
            few.append(store)
            onto_none.append(self._seconds_to_add(store, few, number))
            onto_many.append(self._seconds_to_add(store, many, number))
            if number >= 4 and min(onto_many) < 5 * min(onto_none) + 0.02:
                break
        else:
            raise AssertionError(f"{min(onto_many)} seconds beside {min(onto_none)}")
        assert len(self._results(store, many)) == 10_000 + len(onto_many) * 128

    def _seconds_to_add(self, store: Store, writer: Writer, number: int) -> float:
        results = tuple(a_result(writer.head, f"added {number}.{each}") for each in range(128))
        batch = writer.batch(results=results)
        next(iter(store.history(writer.key, limit=1)))  # opening a log is not what is measured
        begun = perf_counter()
        store.commit(batch)
        return perf_counter() - begun

    def test_results_outlast_a_crash(self, store: Store) -> None:
        # Rules 3 and 8: that is what they are for.
        writer = Writer().begin(store, 2)
        store.commit(writer.batch(results=(a_result(2),)))
        writer.append(store, source="sleep")
        with self.reopened(store) as again:
            assert self._results(again, writer) == [a_result(2)]

    def _rows(self, store: Store, writer: Writer) -> list[TaskResult]:
        return sorted(store.results(writer.key), key=lambda result: result.task)

    def _results(self, store: Store, writer: Writer, seq: int | None = None) -> list[TaskResult]:
        chain = store.read(writer.key, seq)
        assert chain is not None
        return sorted(chain.results, key=lambda result: result.task)


MIXED: tuple[Kind, ...] = (DELTA, DELTA, ROLLUP, DELTA, SNAPSHOT, DELTA, ROLLUP, DELTA)


class FollowingClauses(ContractHooks):
    """Rules 4, 6, 9 and 11, for ``entries``."""

    def test_entries_are_read_oldest_first_with_payloads(self, store: Store) -> None:
        # Rules 4 and 9: every one once, whatever its kind, past any page that a store may have.
        writer = Writer().begin(store, 150).write(store, MIXED)
        writer.append(store, at=2, source="fork")
        assert list(store.entries(writer.key)) == list(writer.entries.values())
        with self.reopened(store) as again:
            assert list(again.entries(writer.key)) == list(writer.entries.values())

    def test_entries_of_one_batch_are_read_apart(self, store: Store) -> None:
        # Rule 9: how they were committed does not show, nor what was committed with them.
        writer = Writer().begin(store)
        batch = writer.batch(
            *(an_entry(seq) for seq in range(2, 9)),
            results=(a_result(8),),
            runs=(a_run(writer.key),),
        )
        store.commit(batch)
        store.commit(Batch(key=writer.key, head=8, results=(a_result(8, "late"),)))
        assert list(store.entries(writer.key, after=1)) == list(batch.entries)
        assert list(store.entries(writer.key, after=3, limit=2)) == list(batch.entries[2:4])

    def test_entries_are_read_from_above_a_seq(self, store: Store) -> None:
        # Rule 9: ``after`` is where the page before ended, and is not read again.
        writer = Writer().begin(store, 5)
        assert self._followed(store, writer, 0) == [1, 2, 3, 4, 5]
        assert self._followed(store, writer, 3) == [4, 5]
        assert self._followed(store, writer, -7) == [1, 2, 3, 4, 5]
        for after in (5, 6, 99):
            assert self._followed(store, writer, after) == []

    def test_entries_are_limited(self, store: Store) -> None:
        # Rule 9: to the oldest ones; 0 is none.
        writer = Writer().begin(store, 5)
        assert self._followed(store, writer, 0, 0) == []
        assert self._followed(store, writer, 0, 2) == [1, 2]
        assert self._followed(store, writer, 2, 2) == [3, 4]
        assert self._followed(store, writer, 4, 2) == [5]
        assert self._followed(store, writer, 0, 99) == [1, 2, 3, 4, 5]

    def test_entries_are_those_of_one_thread(self, store: Store) -> None:
        # Rule 5: not of another thread, nor of the same name for another tenant.
        writer = Writer(a_key("shared", "ours"), 1).begin(store, 2)
        Writer(a_key("shared", "theirs"), 2).begin(store, 4)
        Writer(a_key("shared2", "ours"), 3).begin(store, 4)
        assert list(store.entries(writer.key)) == list(writer.entries.values())
        assert list(store.entries(a_key("nowhere", "ours"))) == []

    def test_entries_are_read_as_pruning_left_them(self, store: Store) -> None:
        # Rule 11: what was dropped is not there; what was rewritten is a snapshot.
        writer = Writer().begin(store).write(store, MIXED)
        writer.prune(store, 3)
        kept = list(writer.entries.values())
        assert list(store.entries(writer.key)) == kept
        assert list(store.entries(writer.key, after=1, limit=2)) == kept[:2]
        assert list(store.entries(writer.key, after=4, limit=3)) == kept[2:5]
        assert kept[0].seq == 3
        assert kept[0].kind == SNAPSHOT

    def test_what_is_followed_beside_a_writer_is_every_entry_once(self, store: Store) -> None:
        # Rule 6: a follower sees each entry after the last seq, in order, as written.
        writer = Writer().begin(store)
        done = Event()
        with ThreadPoolExecutor(2) as pool:
            followers = [pool.submit(self._follow, store, writer, done, n) for n in (None, 2)]
            try:
                writer.write(store, MIXED * 10)
            finally:
                done.set()
        for follower in followers:
            assert follower.result() == list(writer.entries.values())

    def _follow(self, store: Store, writer: Writer, done: Event, limit: int | None) -> list[Entry]:
        seen: list[Entry] = []
        while True:
            last = done.is_set()
            page = store.entries(writer.key, after=seen[-1].seq if seen else 0, limit=limit)
            seen += page
            if last and not page:
                return seen

    def _followed(
        self, store: Store, writer: Writer, after: int, limit: int | None = None
    ) -> list[int]:
        return [entry.seq for entry in store.entries(writer.key, after=after, limit=limit)]
