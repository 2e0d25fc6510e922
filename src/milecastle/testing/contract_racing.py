"""The clauses on concurrency: many threads, one log, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Barrier, Event

from milecastle.errors import Conflict
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Kind
from milecastle.ports.store import Store
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key, state_of
from milecastle.testing.races import race_in_threads, switching_often

__all__ = ["RacingClauses"]


class RacingClauses(ContractHooks):
    """Rules 1 and 6, from several threads at once."""

    def test_of_racing_writers_one_wins_each_seq(self, store: Store) -> None:
        """Rule 1: the others get ``Conflict``, and nothing is lost."""
        outcome = race_in_threads(store, a_key(), races=50, writers=4)
        assert outcome.problems(store) == []

    def test_writers_of_different_threads_do_not_meet(self, store: Store) -> None:
        """Rules 1 and 5: each goes on as if it were alone."""
        writers = [Writer(a_key(f"thread {number}"), number) for number in range(1, 7)]
        kinds: tuple[Kind, ...] = (DELTA, DELTA, ROLLUP, DELTA, SNAPSHOT) * 4
        with ThreadPoolExecutor(len(writers)) as pool:
            begun = [pool.submit(writer.begin(store).write, store, kinds) for writer in writers]
            for each in begun:
                each.result()
        for writer in writers:
            check_reads(store, writer)

    def test_a_writer_and_who_deletes_at_its_head_do_not_both_win(self, store: Store) -> None:
        """Rules 1 and 10: either the entry is there, or neither it nor the thread is."""
        with ThreadPoolExecutor(2) as pool, switching_often():
            for number in range(1, 31):
                writer = Writer(a_key(f"contested {number}"), number).begin(store, 2)
                won = self._contest(pool, store, writer)
                head = store.read(writer.key)
                left = head.entries[-1].seq if head else 0
                assert (won, left) in (((True, False), 3), ((False, True), 0))

    def _contest(self, pool: Executor, store: Store, writer: Writer) -> tuple[bool, bool]:
        """Whether the writer won, and whether who deletes did; both begin together."""
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
        """Rule 6: a reader sees some head, never half of one, and never an older one again."""
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
