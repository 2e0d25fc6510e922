"""The clauses on reading: chains, and the results that come with the head."""

from __future__ import annotations

from time import perf_counter
from typing import get_args

from milecastle.model.checkpoint import (
    DELTA,
    HOLDING,
    ROLLUP,
    SNAPSHOT,
    Kind,
    Source,
    TaskResult,
)
from milecastle.ports.store import Store
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.entries import Writer, a_key, a_result, chain_of, make_id, state_of

__all__ = ["ReadingClauses", "check_reads"]

LONG = ((DELTA,) * 4 + (ROLLUP,)) * 5 + (SNAPSHOT, ROLLUP) + ((DELTA,) * 2 + (ROLLUP,)) * 3


def check_reads(store: Store, writer: Writer) -> None:
    """Assert that every checkpoint that is left reads back, with its chain and its state."""
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
        """Rule 7: nothing before a snapshot is needed."""
        writer = Writer().begin(store, 3)
        entry = writer.append(store, SNAPSHOT)
        chain = store.read(writer.key)
        assert chain is not None
        assert chain.entries == (entry,)

    def test_a_delta_is_read_with_all_from_its_snapshot_on(self, store: Store) -> None:
        """Rule 7: oldest first; the last is the checkpoint."""
        writer = Writer().begin(store, 4)
        chain = store.read(writer.key)
        assert chain is not None
        assert [entry.seq for entry in chain.entries] == [1, 2, 3, 4]

    def test_a_rollup_stands_for_the_deltas_before_it(self, store: Store) -> None:
        """Rule 7: snapshot, rollups, deltas after the newest rollup."""
        writer = Writer().begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA, ROLLUP, DELTA))
        chain = store.read(writer.key)
        assert chain is not None
        assert [entry.seq for entry in chain.entries] == [1, 4, 6, 7]

    def test_every_older_checkpoint_is_read_as_it_was(self, store: Store) -> None:
        """Rule 7: what came later does not show."""
        writer = Writer().begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA, SNAPSHOT, DELTA))
        check_reads(store, writer)

    def test_a_long_history_is_read_at_every_seq(self, store: Store) -> None:
        """Rule 7: with many rollups and several snapshots."""
        writer = Writer().begin(store).write(store, LONG * 3)
        check_reads(store, writer)
        with self.reopened(store) as again:
            check_reads(again, writer)

    def test_a_fork_is_read_from_where_it_branched_off(self, store: Store) -> None:
        """Rule 7: a fork is a snapshot whose parent is further back."""
        writer = Writer().begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA))
        fork = writer.append(store, at=2, source="fork")
        kinds: tuple[Kind, ...] = (DELTA, ROLLUP, DELTA)
        writer.write(store, kinds)
        assert fork.parent_id == writer.entries[2].id
        assert writer.states[writer.head].startswith(writer.states[2])
        assert not writer.states[writer.head].startswith(writer.states[3])
        check_reads(store, writer)

    def test_what_is_not_there_is_none(self, store: Store) -> None:
        """Rule 7: below the first and above the head there is nothing."""
        writer = Writer().begin(store, 3)
        for seq in (-1, 0, 4, 5, 10**9):
            assert store.read(writer.key, seq) is None
        assert store.read(a_key("another"), 1) is None

    def test_a_checkpoint_is_located_by_its_id(self, store: Store) -> None:
        """Rule 7: in its own thread, whatever its kind."""
        writer = Writer().begin(store).write(store, (DELTA, ROLLUP, SNAPSHOT, DELTA))
        other = Writer(a_key("another"), 2).begin(store, 2)
        for entry in writer.entries.values():
            assert store.locate(writer.key, entry.id) == entry.seq
            assert store.locate(other.key, entry.id) is None
        assert store.locate(writer.key, other.entries[1].id) is None
        assert store.locate(writer.key, make_id(0)) is None
        assert store.locate(a_key("nowhere"), make_id(1)) is None

    def test_results_come_with_the_head(self, store: Store) -> None:
        """Rule 8: those of one commit and of several."""
        writer = Writer().begin(store, 2)
        results = [a_result(2, f"task {number}") for number in range(5)]
        store.commit(writer.batch(results=tuple(results[:2])))
        for result in results[2:]:
            store.commit(writer.batch(results=(result,)))
        assert self._results(store, writer) == results
        assert self._results(store, writer, 2) == results

    def test_results_come_with_no_older_checkpoint(self, store: Store) -> None:
        """Rule 8: only the chain of the head has results."""
        writer = Writer().begin(store, 3)
        store.commit(writer.batch(results=(a_result(3),)))
        assert self._results(store, writer, 1) == []
        assert self._results(store, writer, 2) == []

    def test_results_end_with_the_step(self, store: Store) -> None:
        """Rule 8: once the step is committed they are gone, from every checkpoint."""
        sources = [source for source in get_args(Source) if source not in HOLDING]
        assert len(sources) >= 4
        for number, source in enumerate(sources, 1):
            writer = Writer(a_key(source), number).begin(store, 2)
            store.commit(writer.batch(results=(a_result(2),)))
            writer.append(store, source=source)
            assert self._results(store, writer) == []
            assert self._results(store, writer, 2) == []

    def test_results_outlast_what_holds_the_step(self, store: Store) -> None:
        """Rule 8: who takes over, answers or wakes up does not repeat what was finished."""
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
        """Rule 8: under the same head, under a later one, in company; each task is there once."""
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
        """Rule 8: 128 onto 10,000 of the same head; a wide step must not cost its square."""
        few, many = Writer(a_key("few"), 1).begin(store, 2), Writer(a_key("many"), 2).begin(store)
        for number in range(10):
            results = (a_result(1, f"task {number * 1000 + each}") for each in range(1000))
            store.commit(many.batch(results=tuple(results)))
        onto_none: list[float] = []
        onto_many: list[float] = []
        for number in range(5):
            few.append(store)
            onto_none.append(self._seconds_to_add(store, few, number))
            onto_many.append(self._seconds_to_add(store, many, number))
        assert min(onto_many) < 5 * min(onto_none) + 0.02
        assert len(self._results(store, many)) == 10_000 + 5 * 128

    def _seconds_to_add(self, store: Store, writer: Writer, number: int) -> float:
        results = tuple(a_result(writer.head, f"added {number}.{each}") for each in range(128))
        batch = writer.batch(results=results)
        next(iter(store.history(writer.key, limit=1)))  # opening a log is not what is measured
        begun = perf_counter()
        store.commit(batch)
        return perf_counter() - begun

    def test_results_outlast_a_crash(self, store: Store) -> None:
        """Rules 3 and 8: that is what they are for."""
        writer = Writer().begin(store, 2)
        store.commit(writer.batch(results=(a_result(2),)))
        writer.append(store, source="sleep")
        with self.reopened(store) as again:
            assert self._results(again, writer) == [a_result(2)]

    def _results(self, store: Store, writer: Writer, seq: int | None = None) -> list[TaskResult]:
        chain = store.read(writer.key, seq)
        assert chain is not None
        return sorted(chain.results, key=lambda result: result.task)
