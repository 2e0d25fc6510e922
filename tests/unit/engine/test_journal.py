"""The journal: deltas, rollups and snapshots, and the records that travel with them."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle import UnserializableState
from milecastle.app.threads.log import log_codec_for
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position, restore
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT
from milecastle.model.run import CARRIED, Owner
from milecastle.ports.store import Chain
from milecastle.stores.memory import MemoryStore
from tests.unit.engine.by_hand import KEY, journal_for, line, record

GRAPH = line("a")
OWNER = Owner(host="h", boot_id="b", pid=1, started="s")


class Writer:
    """Appends to the list of a state, entry by entry, to a store."""

    def __init__(self, store: MemoryStore, position: Position | None = None, **options: Any):
        self.store = store
        self.journal = journal_for(GRAPH, position, **options)
        self.values: dict[str, Any] = position.values if position else {"n": 0, "log": []}

    def add(self, text: str, source: Any = "step") -> Any:
        self.values = {**self.values, "log": [*self.values["log"], text]}
        self.journal.note([1, "log", [text]])
        return self.commit(source)

    def set(self, number: Any, source: Any = "step") -> Any:
        self.values = {**self.values, "n": number}
        self.journal.note([0, "n", number])
        return self.commit(source)

    def commit(self, source: Any = "step", **options: Any) -> Any:
        batch = self.journal.append(Position(values=self.values), source, **options)
        self.store.commit(batch)
        return batch


def read(store: MemoryStore, seq: int | None = None) -> Position:
    chain = store.read(KEY, seq)
    assert chain is not None
    return restore(chain, log_codec_for(GRAPH), GRAPH.schema)


def test_the_first_entry_is_a_snapshot_and_the_next_are_deltas() -> None:
    writer = Writer(MemoryStore())
    kinds = [writer.add(text).entries[0].kind for text in "abc"]
    assert kinds == [SNAPSHOT, DELTA, DELTA]
    assert read(writer.store).values == writer.values


def test_a_rollup_is_written_after_so_many_deltas() -> None:
    writer = Writer(MemoryStore(), rollup_after=3)
    entries = [writer.add(str(number)).entries[0] for number in range(9)]
    assert [entry.kind for entry in entries] == [
        *(SNAPSHOT, DELTA, DELTA, DELTA, ROLLUP, DELTA, DELTA, DELTA, ROLLUP)
    ]
    assert [entry.roll_seq for entry in entries] == [1, 1, 1, 1, 5, 5, 5, 5, 9]
    for seq in range(1, 10):
        assert read(writer.store, seq).values["log"] == [str(number) for number in range(seq)]


def test_a_store_that_has_rows_at_hand_needs_no_rollups() -> None:
    writer = Writer(MemoryStore())
    kinds = {writer.add(str(number)).entries[0].kind for number in range(300)}
    assert ROLLUP not in kinds


def test_a_snapshot_is_written_when_reading_costs_more_than_twice_the_state() -> None:
    writer = Writer(MemoryStore())
    writer.add("begin")
    sizes = [len(writer.set(number).entries[0].payload) for number in range(1_000)]
    kinds = [entry.kind for entry in writer.store.history(KEY)]
    assert 1 < kinds.count(SNAPSHOT) < 100
    assert sum(sizes) < 1_000 * 60
    chain = writer.store.read(KEY)
    assert chain is not None
    assert sum(len(entry.payload) for entry in chain.entries) < 4_000


def test_a_snapshot_is_looked_for_at_twice_the_last_one() -> None:
    """Fails if the chain grows to three times the state before anybody looks."""
    writer = Writer(MemoryStore())
    kinds = [writer.set("x" * 9_000).entries[0].kind for _ in range(8)]
    assert kinds == [SNAPSHOT, DELTA] * 4


def test_a_growing_state_is_not_written_again_and_again() -> None:
    writer = Writer(MemoryStore())
    total = sum(len(writer.add("x" * 100).entries[0].payload) for _ in range(1_000))
    assert total < 2 * 1_000 * 130


def test_a_takeover_never_cuts_the_chain() -> None:
    writer = Writer(MemoryStore(), rollup_after=2)
    for text in "abc":
        writer.add(text)
    assert writer.commit("takeover").entries[0].kind == DELTA
    assert writer.add("d").entries[0].kind == ROLLUP
    assert read(writer.store).values["log"] == ["a", "b", "c", "d"]


def test_position_says_where_its_step_began_and_how_often_it_was_resumed() -> None:
    """Fails if a takeover or an answer counts as a step, or a sleep as a resumption."""
    writer = Writer(MemoryStore())
    writer.add("begin")
    began = writer.add("step").entries[0]
    for source in ("takeover", "sleep", "answer", "takeover"):
        writer.commit(source)
    found = read(writer.store)
    assert (found.settled, found.settled_id, found.reruns) == (2, began.id, 3)
    writer.add("next")
    assert (read(writer.store).settled, read(writer.store).reruns) == (7, 0)


@pytest.mark.parametrize("source", ["interrupt", "answer", "sleep", "update", "fork"])
def test_stop_for_a_person_was_seen_also_behind_a_takeover(source: str) -> None:
    """Fails if an interrupt that was passed is asked again after a crash, or a step passes one."""
    writer = Writer(MemoryStore())
    writer.add("begin")
    writer.commit(source)
    assert read(writer.store).was_seen
    writer.commit("takeover")
    assert read(writer.store).was_seen
    writer.add("step")
    assert not read(writer.store).was_seen


def test_chain_of_rollups_is_measured_as_it_is_read() -> None:
    """Fails if a rollup does not count, or what it repeats counts twice."""
    writer = Writer(MemoryStore(), rollup_after=2)
    kinds = [writer.set("x" * 300).entries[0].kind for _ in range(40)]
    assert kinds.count(SNAPSHOT) > 2
    assert read(writer.store).chain_bytes <= 4 * read(writer.store).snapshot_bytes


def test_writer_measures_its_chain_as_a_reader_does() -> None:
    """Fails if a writer counts the deltas of a rollup and not the rollup."""
    store = MemoryStore()
    writer = Writer(store, rollup_after=3)
    kinds = [writer.set("x" * 60).entries[0].kind for _ in range(60)]
    for_each = MemoryStore()
    Writer(for_each, rollup_after=3).set("x" * 60)
    read_again = [
        Writer(for_each, read(for_each), rollup_after=3).set("x" * 60).entries[0].kind
        for _ in range(59)
    ]
    assert {SNAPSHOT, ROLLUP, DELTA} == {*read_again}
    assert kinds == [SNAPSHOT, *read_again]


def test_writer_continues_its_chain() -> None:
    store = MemoryStore()
    writer = Writer(store, rollup_after=4)
    for text in "abc":
        writer.add(text)
    again = Writer(store, read(store), rollup_after=4)
    kinds = [again.add(text).entries[0].kind for text in "defg"]
    assert kinds == [DELTA, DELTA, ROLLUP, DELTA]
    assert read(store).values["log"] == list("abcdefg")


def test_a_writer_that_branches_off_begins_with_a_snapshot() -> None:
    store = MemoryStore()
    writer = Writer(store)
    for text in "abc":
        writer.add(text)
    old = read(store, 1)
    branch = Writer(store, old, head=3)
    batch = branch.add("x")
    assert (batch.head, batch.entries[0].seq, batch.entries[0].kind) == (3, 4, SNAPSHOT)
    assert old.entry is not None
    assert batch.entries[0].parent_id == old.entry.id
    assert read(store).values["log"] == ["a", "x"]
    assert read(store, 3).values["log"] == ["a", "b", "c"]


def test_a_restarted_journal_writes_a_snapshot() -> None:
    store = MemoryStore()
    writer = Writer(store)
    writer.add("a")
    writer.journal.restart()
    assert writer.add("b").entries[0].kind == SNAPSHOT


def test_records_and_manifest_are_written_once() -> None:
    writer = Writer(MemoryStore(), manifest=b"{}")
    first, second = writer.add("a"), writer.add("b")
    assert (len(first.runs), first.manifest) == (1, (GRAPH.fingerprint, b"{}"))
    assert (second.runs, second.manifest) == ((), None)
    third = writer.commit(status="completed")
    assert [(run.status, run.ended_at is not None) for run in third.runs] == [("completed", True)]


def test_what_observers_give_is_stored_with_a_record_that_is_still_to_be_written() -> None:
    """Fails if metadata of the run is lost, or a record that is stored differs from this one."""
    writer = Writer(MemoryStore(), record=record(GRAPH, metadata={"host": "h"}))
    writer.journal.carry({"trace": "1"})
    [stored] = writer.add("a").runs
    assert stored.metadata == {"host": "h", f"{CARRIED}trace": "1"}
    writer.journal.carry({"trace": "2"})
    assert writer.journal.record == stored


def test_run_that_is_queued_again_has_no_owner() -> None:
    """Fails if a thread in the queue looks as if somebody ran it."""
    writer = Writer(MemoryStore(), record=record(GRAPH, owner=OWNER))
    [stored] = writer.commit(status="queued").runs
    assert (stored.status, stored.owner) == ("queued", None)


def test_an_unannounced_journal_writes_no_record() -> None:
    assert Writer(MemoryStore(), announced=False).add("a").runs == ()


def test_a_superseded_run_is_closed_with_the_next_entry() -> None:
    writer = Writer(MemoryStore())
    writer.journal.supersede(record(GRAPH, run_id="old"), ("a",), 3)
    batch = writer.add("a")
    written, failure = batch.runs, batch.failure
    assert failure is not None
    assert (failure.run_id, failure.failure_class, failure.resumable) == ("old", "system", True)
    assert (failure.node, failure.attempt, failure.traceback) == ("a", 3, ())
    assert [(run.run_id, run.status) for run in written] == [
        ("old", "superseded"),
        ("run", "running"),
    ]
    assert written[0].ended_at is not None
    assert writer.add("a").failure is None


def test_an_illegal_turn_is_a_defect() -> None:
    journal: Journal = journal_for(GRAPH)
    journal.turn("completed")
    with pytest.raises(RuntimeError, match="from completed to failed"):
        journal.turn("failed")


def test_an_entry_that_cannot_be_stored_leaves_the_record_as_it_was() -> None:
    writer = Writer(MemoryStore())
    writer.add("a")
    writer.journal.note([0, "n", object()])
    with pytest.raises(UnserializableState, match=r"\$\.n"):
        writer.commit(status="completed")
    assert writer.journal.record.status == "running"
    writer.journal.turn("failed")
    batch = writer.journal.close()
    assert (batch.head, [run.status for run in batch.runs]) == (1, ["failed"])


def test_a_chain_without_a_snapshot_is_damage() -> None:
    from milecastle.errors import Corrupted

    writer = Writer(MemoryStore())
    writer.add("a")
    delta = writer.add("b").entries[0]
    with pytest.raises(Corrupted, match="no snapshot"):
        restore(Chain((delta,)), log_codec_for(GRAPH))
