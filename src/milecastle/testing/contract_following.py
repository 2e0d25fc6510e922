"""The clauses on following a log: entries oldest first, with payloads, page by page."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry, Kind
from milecastle.ports.store import Batch, Store
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.entries import Writer, a_key, a_result, a_run, an_entry

__all__ = ["FollowingClauses"]

MIXED: tuple[Kind, ...] = (DELTA, DELTA, ROLLUP, DELTA, SNAPSHOT, DELTA, ROLLUP, DELTA)


class FollowingClauses(ContractHooks):
    """Rules 4, 6, 9 and 11, for ``entries``."""

    def test_entries_are_read_oldest_first_with_payloads(self, store: Store) -> None:
        """Rules 4 and 9: every one once, whatever its kind, past any page that a store may have."""
        writer = Writer().begin(store, 150).write(store, MIXED)
        writer.append(store, at=2, source="fork")
        assert list(store.entries(writer.key)) == list(writer.entries.values())
        with self.reopened(store) as again:
            assert list(again.entries(writer.key)) == list(writer.entries.values())

    def test_entries_of_one_batch_are_read_apart(self, store: Store) -> None:
        """Rule 9: how they were committed does not show, nor what was committed with them."""
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
        """Rule 9: ``after`` is where the page before ended, and is not read again."""
        writer = Writer().begin(store, 5)
        assert self._followed(store, writer, 0) == [1, 2, 3, 4, 5]
        assert self._followed(store, writer, 3) == [4, 5]
        assert self._followed(store, writer, -7) == [1, 2, 3, 4, 5]
        for after in (5, 6, 99):
            assert self._followed(store, writer, after) == []

    def test_entries_are_limited(self, store: Store) -> None:
        """Rule 9: to the oldest ones; 0 is none."""
        writer = Writer().begin(store, 5)
        assert self._followed(store, writer, 0, 0) == []
        assert self._followed(store, writer, 0, 2) == [1, 2]
        assert self._followed(store, writer, 2, 2) == [3, 4]
        assert self._followed(store, writer, 4, 2) == [5]
        assert self._followed(store, writer, 0, 99) == [1, 2, 3, 4, 5]

    def test_entries_are_those_of_one_thread(self, store: Store) -> None:
        """Rule 5: not of another thread, nor of the same name for another tenant."""
        writer = Writer(a_key("shared", "ours"), 1).begin(store, 2)
        Writer(a_key("shared", "theirs"), 2).begin(store, 4)
        Writer(a_key("shared2", "ours"), 3).begin(store, 4)
        assert list(store.entries(writer.key)) == list(writer.entries.values())
        assert list(store.entries(a_key("nowhere", "ours"))) == []

    def test_entries_are_read_as_pruning_left_them(self, store: Store) -> None:
        """Rule 11: what was dropped is not there; what was rewritten is a snapshot."""
        writer = Writer().begin(store).write(store, MIXED)
        writer.prune(store, 3)
        kept = list(writer.entries.values())
        assert list(store.entries(writer.key)) == kept
        assert list(store.entries(writer.key, after=1, limit=2)) == kept[:2]
        assert list(store.entries(writer.key, after=4, limit=3)) == kept[2:5]
        assert kept[0].seq == 3
        assert kept[0].kind == SNAPSHOT

    def test_what_is_followed_beside_a_writer_is_every_entry_once(self, store: Store) -> None:
        """Rule 6: who asks for what comes after the last sees each entry, in order, as written."""
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
