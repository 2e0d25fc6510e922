from __future__ import annotations

from collections.abc import Callable

import msgspec.structs
import pytest

from milecastle.errors import Conflict, InvalidRequest, Unavailable
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry, Kind
from milecastle.ports.store import Batch, Store
from milecastle.testing.contract_hooks import ContractHooks, everything_of
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_failure, a_key, a_result, a_run, an_entry, make_id

WAVES: tuple[Kind, ...] = (DELTA, DELTA, ROLLUP) * 3 + (DELTA, SNAPSHOT, DELTA, ROLLUP, DELTA)


def _strangers(entry: Entry) -> list[Entry]:
    """The entry with another id, and with another payload."""
    return [
        msgspec.structs.replace(entry, id=make_id(987_654)),
        msgspec.structs.replace(entry, payload=entry.payload + b"!"),
    ]


class RemovingClauses(ContractHooks):
    """Rules 10, 11 and 12."""

    def test_deleting_leaves_no_entry(self, store: Store) -> None:
        # Rule 10: nothing is read, listed or located.
        writer = self._full_thread(store)
        assert store.delete(writer.key) is True
        assert store.read(writer.key) is None
        assert store.read(writer.key, 1) is None
        assert list(store.history(writer.key)) == []
        assert store.locate(writer.key, writer.entries[1].id) is None

    def test_deleting_leaves_no_run(self, store: Store) -> None:
        # Rule 10: nor is the thread listed.
        writer = self._full_thread(store)
        store.delete(writer.key)
        assert list(store.runs(writer.key)) == []
        assert store.run(writer.key, writer.run.run_id) is None
        assert list(store.threads(writer.key.tenant)) == []

    def test_deleting_leaves_no_failure(self, store: Store) -> None:
        # Rule 10: why it failed is part of the thread.
        writer = self._full_thread(store)
        store.delete(writer.key)
        assert store.failure(writer.key, writer.run.run_id) is None

    def test_deleting_leaves_no_result(self, store: Store) -> None:
        # Rule 10: a thread of the same name begins without them.
        writer = self._full_thread(store)
        store.delete(writer.key)
        again = Writer(writer.key, 2)
        again.append(store, source="takeover")
        chain = store.read(writer.key)
        assert chain is not None
        assert chain.results == ()

    def test_deleting_nothing_says_so(self, store: Store) -> None:
        # Rule 10: ``False`` if there was no thread, also the second time.
        writer = self._full_thread(store)
        assert store.delete(a_key("nowhere")) is False
        assert store.delete(writer.key) is True
        assert store.delete(writer.key) is False

    def test_deleting_at_the_head_that_is_there(self, store: Store) -> None:
        # Rule 10: the fence accepts a writer that knows the head; the head of nothing is 0.
        writer = self._full_thread(store)
        assert store.delete(writer.key, head=writer.head) is True
        assert store.read(writer.key) is None
        assert store.delete(writer.key, head=0) is False
        store.commit(Writer(writer.key).batch(runs=(writer.run,)))
        assert store.delete(writer.key, head=0) is True
        assert list(store.runs(writer.key)) == []

    def test_deleting_is_refused_when_the_head_moved(self, store: Store) -> None:
        # Rule 10: ``Conflict``, and nothing is changed.
        writer = self._full_thread(store)
        before = everything_of(store, writer.key)
        for head in (writer.head - 1, writer.head + 1, 0):
            with pytest.raises(Conflict) as caught:
                store.delete(writer.key, head=head)
            assert (caught.value.tenant, caught.value.thread) == ("tenant", writer.key.thread)
            assert (caught.value.expected, caught.value.head) == (head, writer.head)
        assert everything_of(store, writer.key) == before
        with pytest.raises(Conflict):
            store.delete(a_key("nowhere"), head=3)
        store.delete(writer.key)
        with pytest.raises(Conflict) as caught:
            store.delete(writer.key, head=writer.head)
        assert caught.value.head == 0

    def test_deleting_is_refused_when_the_head_is_another_entry(self, store: Store) -> None:
        # Rule 10: a thread that was deleted and begun again has the seq, but not the id.
        old = self._full_thread(store)
        last = old.entries[old.head].id
        store.delete(old.key)
        writer = Writer(old.key, 2).begin(store, old.head)
        before = everything_of(store, writer.key)
        for head in (old.head, None):
            with pytest.raises(Conflict) as caught:
                store.delete(old.key, head=head, head_id=last)
            assert (caught.value.expected, caught.value.head) == (old.head + 1, old.head)
        with pytest.raises(Conflict):
            store.delete(a_key("nowhere"), head=0, head_id=last)
        assert everything_of(store, writer.key) == before
        newest = writer.entries[writer.head].id
        assert store.delete(writer.key, head=writer.head, head_id=newest) is True

    def test_a_thread_with_only_records_is_deleted(self, store: Store) -> None:
        # Rule 10: it was there, though nothing was saved.
        writer = Writer()
        store.commit(writer.batch(runs=(writer.run,)))
        assert store.delete(writer.key) is True
        assert list(store.runs(writer.key)) == []

    def test_deleting_leaves_other_threads_alone(self, store: Store) -> None:
        # Rule 10: also those whose names begin alike.
        writer = self._full_thread(store)
        names = ("thread2", "threa", "thread/", "THREAD", "thread%", "%", "t_read")
        others = [
            Writer(a_key(name), number).begin(store, 3) for number, name in enumerate(names, 2)
        ]
        store.delete(writer.key)
        for other in others:
            check_reads(store, other)
            assert list(store.runs(other.key)) == [other.run]
        assert len(store.threads(writer.key.tenant)) == len(names)

    def test_a_writer_of_a_deleted_thread_is_refused(self, store: Store) -> None:
        # Rule 10: it cannot bring the thread back.
        writer = self._full_thread(store)
        store.delete(writer.key)
        for batch in (
            writer.batch(writer.plan()),
            writer.batch(runs=(writer.run,)),
            writer.batch(results=(a_result(writer.head),)),
        ):
            with pytest.raises(Conflict) as caught:
                store.commit(batch)
            assert caught.value.head == 0
        assert store.read(writer.key) is None
        assert list(store.threads(writer.key.tenant)) == []

    def test_a_deleted_thread_may_begin_anew(self, store: Store) -> None:
        # Rule 10: from seq 1, with nothing of what was.
        deleted = self._full_thread(store)
        store.delete(deleted.key)
        writer = Writer(deleted.key, 2).begin(store, 2)
        check_reads(store, writer)
        assert store.read(writer.key, 3) is None
        assert list(store.runs(writer.key)) == [writer.run]

    def test_pruning_drops_what_is_below_the_cut(self, store: Store) -> None:
        # Rule 11: and nothing else; it says how many.
        writer = self._waves(store)
        dropped = [writer.entries[seq] for seq in (1, 2, 3)]
        assert writer.prune(store, 4) == 3
        seqs = [entry.seq for entry in store.history(writer.key)]
        assert seqs == list(range(writer.head, 3, -1))
        for entry in dropped:
            assert store.read(writer.key, entry.seq) is None
            assert store.locate(writer.key, entry.id) is None
        assert store.locate(writer.key, writer.entries[4].id) == 4

    def test_what_is_left_is_read_back_right_at_any_cut(self, store: Store) -> None:
        # Rule 11: at a snapshot, at a rollup, between them.
        for number in range(1, 15):
            writer = self._waves(store, f"cut at {number}", number)
            limit = writer.entries[writer.head].roll_seq
            assert writer.prune(store, min(number, limit)) == min(number, limit) - 1
            check_reads(store, writer)

    def test_pruning_again_goes_on_from_there(self, store: Store) -> None:
        # Rule 11: cut by cut; a cut below the first entry drops nothing.
        writer = self._waves(store)
        for cut in (1, 2, 3, 3, 6, 9, 12):
            writer.prune(store, cut)
            check_reads(store, writer)
        assert store.prune(writer.key, head=writer.head, cut=5, rewritten=()) == 0
        check_reads(store, writer)

    def test_a_live_writer_goes_on_over_a_pruning(self, store: Store) -> None:
        # Rule 11: with pointers to what is gone, through deltas, rollups and snapshots.
        for number in range(1, 15):
            writer = self._waves(store, f"cut at {number}", number)
            writer.prune(store, min(number, writer.entries[writer.head].roll_seq))
            kinds: tuple[Kind, ...] = (DELTA, DELTA, ROLLUP, DELTA, ROLLUP, SNAPSHOT, DELTA)
            for kind in kinds:
                writer.append(store, kind)
                check_reads(store, writer)

    def test_a_rewritten_entry_is_a_snapshot_from_then_on(self, store: Store) -> None:
        # Rule 11: with its note, though nothing is dropped; what it cannot replace is ignored.
        writer = Writer().begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA))
        snapshot = msgspec.structs.replace(writer.rewrite(4)[0], note="rewritten")
        stray = an_entry(0, id=make_id(99))
        rewritten = (stray, snapshot)
        assert store.prune(writer.key, head=5, cut=1, rewritten=rewritten) == 0
        writer.entries[4] = snapshot
        check_reads(store, writer)
        assert [entry.seq for entry in store.history(writer.key)] == [5, 4, 3, 2, 1]

    def test_pruning_is_refused_when_the_head_moved(self, store: Store) -> None:
        # Rule 11: ``Conflict``, and nothing is changed.
        writer = self._waves(store)
        before = everything_of(store, writer.key)
        for head in (writer.head - 1, writer.head + 1, 0):
            with pytest.raises(Conflict) as caught:
                store.prune(writer.key, head=head, cut=4, rewritten=writer.rewrite(4))
            assert (caught.value.thread, caught.value.head) == (writer.key.thread, writer.head)
        with pytest.raises(Conflict):
            store.prune(a_key("nowhere"), head=3, cut=1, rewritten=())
        assert everything_of(store, writer.key) == before

    def test_archiving_compares_the_oldest_entry(self, store: Store) -> None:
        # Rule 11: what was pruned, archived or begun again meanwhile is left as it is.
        writer = self._waves(store)
        before = everything_of(store, writer.key)
        first, second = store.entries(writer.key, limit=2)
        rewritten = writer.rewrite(4)
        for other in (second, *_strangers(first)):
            with pytest.raises(Conflict):
                store.prune(writer.key, head=writer.head, cut=4, rewritten=rewritten, oldest=other)
        assert everything_of(store, writer.key) == before
        assert (
            store.prune(writer.key, head=writer.head, cut=4, rewritten=rewritten, oldest=first) == 3
        )

    def test_archived_entries_are_put_back(self, store: Store) -> None:
        # Rule 11: each as it was; the last of them replaces the payload of the oldest.
        for number in (1, 2):
            writer = self._waves(store, f"restored {number}", number)
            before = store.entries(writer.key)
            replaced = msgspec.structs.replace(writer.rewrite(4)[0], payload=b"elsewhere")
            rewritten = [replaced, *writer.rewrite(4)[1:]]
            head = writer.head
            store.prune(writer.key, head=head, cut=4, rewritten=rewritten, archived=True)
            (oldest,) = store.entries(writer.key, limit=1)
            whole = writer.rewrite(4)[0]
            store.put_back(writer.key, head=head, oldest=oldest, entries=[*before[:3], whole])
            after = {entry.seq: entry for entry in store.entries(writer.key)}
            assert [after.get(entry.seq) for entry in before[:3]] == list(before[:3])
            assert after[4] == whole
            assert list(after) == [entry.seq for entry in before]
            writer.entries.update({entry.seq: entry for entry in rewritten} | {4: whole})
            check_reads(store, writer)
            writer.write(store, (DELTA, ROLLUP, SNAPSHOT))
            check_reads(store, writer)

    def test_entries_are_put_back_in_their_place_only(self, store: Store) -> None:
        # Rule 11: below the oldest entry that was read, at the head that was read.
        writer = self._waves(store)
        before = store.entries(writer.key)
        rewritten = writer.rewrite(4)
        store.prune(writer.key, head=writer.head, cut=4, rewritten=rewritten, archived=True)
        left = everything_of(store, writer.key)
        (oldest,) = store.entries(writer.key, limit=1)
        entries = [*before[:3], rewritten[0]]
        places = [(writer.head, stranger) for stranger in (before[0], *_strangers(oldest))]
        for head, other in ((writer.head - 1, oldest), *places):
            with pytest.raises(Conflict):
                store.put_back(writer.key, head=head, oldest=other, entries=entries)
        assert everything_of(store, writer.key) == left

    def test_pruning_above_what_a_writer_may_roll_up_is_refused(self, store: Store) -> None:
        # Rule 11: nothing above the head's ``roll_seq`` is cut or rewritten, least the head.
        writer = Writer().begin(store).write(store, (DELTA, ROLLUP, DELTA, DELTA))
        before = everything_of(store, writer.key)
        for cut in (4, 5, 6, 99):
            rewritten = writer.rewrite(cut) if cut <= writer.head else []
            with pytest.raises(InvalidRequest):
                store.prune(writer.key, head=5, cut=cut, rewritten=rewritten)
        with pytest.raises(InvalidRequest):
            store.prune(writer.key, head=5, cut=1, rewritten=writer.rewrite(4))
        assert everything_of(store, writer.key) == before

    def test_pruning_leaves_runs_failures_and_results(self, store: Store) -> None:
        # Rule 11: only entries are dropped.
        writer = self._waves(store)
        failed = a_run(writer.key, 50, status="failed")
        store.commit(
            writer.batch(
                runs=(failed,), failure=a_failure(failed.run_id), results=(a_result(writer.head),)
            )
        )
        before = everything_of(store, writer.key)
        writer.prune(store, 10)
        after = everything_of(store, writer.key)
        for kept in ("head", "results", "runs", "failures", "threads"):
            assert after[kept] == before[kept], kept
        assert after["results"] == [a_result(writer.head)]

    def test_the_fence_holds_after_pruning(self, store: Store) -> None:
        # Rules 1 and 11: a seq that was dropped stays taken.
        writer = self._waves(store)
        writer.prune(store, 10)
        for seq in (1, 4, 10, writer.head):
            late = an_entry(seq, id=make_id(99))
            with pytest.raises(Conflict):
                store.commit(Batch(key=writer.key, head=seq - 1, entries=(late,)))
        writer.append(store)
        check_reads(store, writer)

    def test_history_is_paged_after_pruning(self, store: Store) -> None:
        # Rules 9 and 11: ``before`` is a seq, not a place in the list.
        writer = self._waves(store)
        writer.prune(store, 10)
        found = [entry.seq for entry in store.history(writer.key, before=13, limit=2)]
        assert found == [12, 11]
        assert [entry.seq for entry in store.history(writer.key, before=12)] == [11, 10]
        assert list(store.history(writer.key, before=10)) == []
        assert list(store.history(writer.key, before=5)) == []

    def test_a_closed_store_is_unavailable(self, store: Store) -> None:
        # Rule 12: for every method; closing again does nothing.
        writer = self._full_thread(store)
        store.close()
        for name, call in self._calls(store, writer).items():
            try:
                call()
            except Unavailable:
                continue
            raise AssertionError(f"{name} on a closed store did not raise Unavailable")
        store.close()

    def _calls(self, store: Store, writer: Writer) -> dict[str, Callable[[], object]]:
        key, run_id = writer.key, writer.run.run_id
        return {
            "commit": lambda: store.commit(writer.batch(writer.plan())),
            "read": lambda: store.read(key),
            "read at": lambda: store.read(key, 1),
            "open": lambda: store.open(key),
            "head": lambda: store.head(key),
            "results": lambda: store.results(key),
            "read state": lambda: store.read_state(key),
            "count results": lambda: store.count_results(key, "task"),
            "locate": lambda: store.locate(key, writer.entries[1].id),
            "history": lambda: list(store.history(key)),
            "entries": lambda: store.entries(key),
            "runs": lambda: store.runs(key),
            "run": lambda: store.run(key, run_id),
            "find run": lambda: store.find_run(key, "digest"),
            "failure": lambda: store.failure(key, run_id),
            "threads": lambda: store.threads(key.tenant),
            "thread": lambda: store.thread(key),
            "recent threads": lambda: store.recent_threads(key.tenant),
            "waking threads": lambda: store.waking_threads(key.tenant),
            "recent runs": lambda: store.recent_runs(key.tenant),
            "manifest": lambda: store.manifest(key, "a" * 32),
            "delete": lambda: store.delete(key),
            "prune": lambda: store.prune(key, head=writer.head, cut=1, rewritten=()),
            "put_back": lambda: store.put_back(
                key, head=writer.head, oldest=an_entry(1), entries=(an_entry(1),)
            ),
        }

    def _full_thread(self, store: Store) -> Writer:
        writer = Writer().begin(store).write(store, (DELTA, ROLLUP, DELTA))
        failed = msgspec.structs.replace(writer.run, status="failed")
        failure = a_failure(failed.run_id)
        store.commit(writer.batch(results=(a_result(4),), manifest=("a" * 32, b"manifest")))
        store.commit(writer.batch(runs=(failed,), failure=failure))
        return writer

    def _waves(self, store: Store, thread: str = "waves", number: int = 1) -> Writer:
        return Writer(a_key(thread), number).begin(store).write(store, WAVES)
