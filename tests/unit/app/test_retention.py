"""Retention: what every rule allows is deleted, and nothing that is still needed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milecastle import (
    CheckpointStore,
    Conflict,
    InvalidRequest,
    Keyring,
    Retention,
    Store,
    ThreadKey,
)
from milecastle.app.upkeep.retention import apply_retention
from milecastle.codec.deltas import LogCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.model.checkpoint import Entry
from milecastle.model.run import RunStatus
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ManualClock, WrappedStore
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.entries import a_key, a_run
from tests.every_store import EVERY_KIND, Stores

CODEC = LogCodec(ValueCodec(TypeRegistry()))
DAY = timedelta(days=1)
NOW = 1_700_000_000_000_000 + 100 * DAY // timedelta(microseconds=1)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


def days_ago(days: float) -> int:
    return NOW - int(days * DAY / timedelta(microseconds=1))


class Draft(msgspec.Struct):
    """Where a thread is."""

    values: dict[str, Any]
    next: tuple[str, ...]
    step: int = 1
    nodes: tuple[str, ...] = ("write",)
    route: tuple[str, ...] = ()
    reserved: dict[str, Any] = {}


class Diary:
    """A thread that the engine's journal writes, an entry at each of some days."""

    def __init__(self, store: Store, thread: str = "t", rollup_after: int = 4) -> None:
        self.store = store
        self.key = a_key(thread)
        self.values: dict[str, Any] = {}
        self._clock = ManualClock(days_ago(100))
        self._journal = Journal(
            record=a_run(self.key, days_ago(90), run_id=f"run of {thread}"),
            codec=CODEC,
            clock=self._clock,
            position=Position(values={}),
            head=0,
            rollup_after=rollup_after,
        )

    def write(self, *days: float, status: RunStatus | None = None) -> Diary:
        for day in days:
            self._clock.advance((days_ago(day) - self._clock.now()) / 1_000_000)
            number = self.values.get("n", 0) + 1
            self.values = {"n": number, "pad": "x" * 100}
            self._journal.note([0, "n", number])
            turn = status if day == days[-1] else None
            over = (turn or self._journal.record.status) == "completed"
            at = Draft(self.values, () if over else ("write",))
            self.store.commit(self._journal.append(at, "step", status=turn))
        return self

    def seqs(self) -> list[int]:
        return [entry.seq for entry in self.store.history(self.key)][::-1]

    def states(self) -> dict[int, Any]:
        """Every state that can be read, by its seq."""
        direct = CheckpointStore(self.store)
        found = {known.seq: direct.get_by_id(self.key, known.id) for known in self.known()}
        return {seq: checkpoint.state for seq, checkpoint in found.items() if checkpoint}

    def known(self) -> Iterator[Entry]:
        return self.store.history(self.key)


def apply(store: Store, *, dry_run: bool = False, **rules: Any) -> tuple[int, int, int, Any, Any]:
    """Apply a retention; what was looked at, pruned, dropped, deleted and busy."""
    report = apply_retention(store, CODEC, "tenant", Retention(**rules), now=NOW, dry_run=dry_run)
    assert report.dry_run == dry_run
    return report.threads, report.pruned, report.dropped, report.deleted, report.busy


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_last_ones_are_kept_and_read_as_before(stores: Stores, kind: str) -> None:
    store = stores.open(kind)
    diary = Diary(store).write(*range(40, 20, -1))
    other = Diary(store, "short").write(3, 2, 1)
    before = diary.states()
    assert set(before) == set(range(1, 21))
    assert apply(store, keep_last=6) == (2, 1, 14, (), ())
    assert diary.states() == {seq: before[seq] for seq in range(15, 21)}
    assert other.seqs() == [1, 2, 3]
    assert apply(store, keep_last=6) == (2, 0, 0, (), ())
    diary.write(1, 0.5)
    assert diary.states()[22]["n"] == 22


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_by_age_old_checkpoints_go_and_ended_threads_whole(stores: Stores, kind: str) -> None:
    store = stores.open(kind)
    running = Diary(store, "running").write(*range(40, 20, -1))
    ended = Diary(store, "ended").write(50, 40, 31, status="completed")
    failed = Diary(store, "failed").write(50, 31, status="failed")
    young = Diary(store, "young").write(50, 29, status="completed")
    waiting = Diary(store, "waiting").write(60, 50, 40, status="interrupted")
    sleeping = Diary(store, "sleeping").write(60, 50, status="sleeping")
    states = running.states()
    assert apply(store, older_than=30 * DAY) == (6, 1, 10, ("ended",), ())
    assert running.states() == {seq: states[seq] for seq in range(11, 21)}
    assert ended.seqs() == []
    assert [diary.seqs()[-1] for diary in (young, failed, waiting, sleeping)] == [2, 2, 3, 2]
    assert apply(store, older_than=30 * DAY, failed=True)[3] == ("failed",)
    assert [diary.seqs()[-1] for diary in (young, waiting, sleeping)] == [2, 3, 2]
    with pytest.raises(Conflict):
        ended.write(1)
    waiting.write(1)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_dry_run_says_what_would_go_and_changes_nothing(stores: Stores, kind: str) -> None:
    store = stores.open(kind)
    diaries = [
        Diary(store, "long").write(*range(40, 20, -1)),
        Diary(store, "ended").write(50, 40, status="cancelled"),
    ]
    before = [everything_of(store, diary.key) for diary in diaries]
    for rules in ({"keep_last": 6}, {"older_than": 30 * DAY}, {"keep_last": 9, "older_than": DAY}):
        foreseen = apply(store, dry_run=True, **rules)
        assert [everything_of(store, diary.key) for diary in diaries] == before
        assert foreseen[2] > 0, rules
    assert apply(store, dry_run=True, older_than=30 * DAY) == apply(store, older_than=30 * DAY)


def test_with_both_rules_only_what_both_allow_is_deleted() -> None:
    store = MemoryStore()
    diary = Diary(store, "long").write(*range(40, 20, -1))
    ended = Diary(store, "ended").write(60, 50, status="completed")
    assert apply(store, keep_last=6, older_than=35 * DAY) == (2, 1, 5, (), ())
    assert diary.seqs()[0] == 6
    assert apply(store, keep_last=6, older_than=DAY) == (2, 1, 9, (), ())
    assert diary.seqs()[0] == 15
    assert ended.seqs() == [1, 2]


def test_only_the_threads_that_are_named_are_looked_at() -> None:
    store = MemoryStore()
    for name in "abc":
        Diary(store, name).write(60, 50, status="completed")
    named = ("a", "c", "nowhere")
    assert apply(store, older_than=DAY, threads=named) == (3, 0, 0, ("a", "c"), ())
    assert [info.key.thread for info in store.threads("tenant")] == ["b"]


def test_other_tenants_are_left_alone() -> None:
    store = MemoryStore()
    Diary(store).write(60, 50, status="completed")
    report = apply_retention(store, CODEC, "another", Retention(older_than=DAY), now=NOW)
    assert report.threads == 0
    assert len(store.threads("tenant")) == 1


def test_a_thread_that_was_updated_since_its_run_ended_stays() -> None:
    store = MemoryStore()
    Diary(store).write(60, 50, status="completed")
    direct = CheckpointStore(store, clock=ManualClock(days_ago(2)))
    direct.put(a_key("t"), {"n": 7})
    assert apply(store, older_than=10 * DAY)[3] == ()
    assert apply(store, older_than=DAY)[3] == ("t",)


def test_update_without_its_own_run_is_counted_too() -> None:
    store = MemoryStore()
    diary = Diary(store).write(60, 50, status="completed")
    diary.write(2)
    assert store.runs(diary.key)[0].ended_at == days_ago(50)
    assert apply(store, older_than=10 * DAY)[3] == ()
    assert apply(store, older_than=DAY)[3] == ("t",)


def test_a_thread_that_somebody_else_deleted_is_not_counted() -> None:
    class Late(WrappedStore):
        def delete(
            self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
        ) -> bool:
            super().delete(key, head=head, head_id=head_id)
            return super().delete(key)

    store = Late(MemoryStore())
    Diary(store).write(60, 50, status="completed")
    assert apply(store, older_than=DAY)[3] == ()


def test_a_clock_that_was_set_back_costs_no_young_checkpoint() -> None:
    store = MemoryStore()
    diary = Diary(store).write(9, 9, 1, 9, 9, 9, 9, 9, 9)
    apply(store, older_than=5 * DAY)
    assert diary.seqs()[0] == 3


def test_more_threads_than_a_page_are_looked_at() -> None:
    store = MemoryStore()
    for number in range(2101):
        Diary(store, f"{number:05}").write(9, status="completed")
    assert len(apply(store, older_than=DAY)[3]) == 2101
    assert list(store.threads("tenant")) == []


class Racing(WrappedStore):
    """Somebody is faster than each of some prunings."""

    moves = 0
    diary: Diary | None = None
    trouble: type[Exception] | None = None

    def prune(self, key: ThreadKey, **options: Any) -> int:
        if self.moves:
            self.moves -= 1
            if self.trouble:
                raise self.trouble("in between")
            assert self.diary is not None
            self.diary.write(1)
        return super().prune(key, **options)


@pytest.mark.parametrize("trouble", [None, InvalidRequest])
def test_a_thread_that_is_written_to_is_tried_again(trouble: type[Exception] | None) -> None:
    store = Racing(MemoryStore())
    store.diary = Diary(store).write(*range(40, 20, -1))
    store.moves, store.trouble = 2, trouble
    pruned = apply(store, keep_last=6)
    assert pruned[1:] == (1, 14 if trouble else 16, (), ())


def test_a_thread_that_is_written_to_all_the_time_is_left_for_the_next_time() -> None:
    store = Racing(MemoryStore())
    store.diary = Diary(store).write(*range(40, 20, -1))
    store.moves = 3
    assert apply(store, keep_last=6) == (1, 0, 0, (), ("t",))
    assert store.diary.seqs()[0] == 1
    assert apply(store, keep_last=6)[1] == 1


def test_persistent_trouble_is_reported() -> None:
    store = Racing(MemoryStore())
    store.diary = Diary(store).write(*range(40, 20, -1))
    store.moves, store.trouble = 3, InvalidRequest
    with pytest.raises(InvalidRequest):
        apply(store, keep_last=6)


def test_what_a_live_writer_rests_on_stays() -> None:
    store = MemoryStore()
    diary = Diary(store, rollup_after=8).write(*range(40, 20, -1))
    chain = store.read(diary.key)
    assert chain is not None
    roll = chain.entries[-1].roll_seq
    assert roll < 20
    apply(store, keep_last=1)
    assert diary.seqs()[0] == roll
    assert diary.write(1).states()[21]["n"] == 21


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({}, "needs keep_last, older_than or archive_after"),
        ({"threads": ("a",)}, "needs keep_last, older_than or archive_after"),
        ({"keep_last": 0}, "keep_last must be at least 1"),
        ({"older_than": -DAY}, "must not be negative"),
    ],
)
def test_a_retention_that_keeps_nothing_in_particular_is_refused(
    rules: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        Retention(**rules)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_erasing_takes_threads_whatever_their_state(stores: Stores, kind: str) -> None:
    store = stores.open(kind)
    running, other = Diary(store, "running").write(3, 2), Diary(store, "other").write(1)
    direct = CheckpointStore(store, clock=ManualClock(NOW))
    report = direct.erase("tenant", ["running", "nowhere", "running"])
    assert (report.erased, report.missing) == (("running",), ("nowhere",))
    assert (report.tenant, report.erased_at) == ("tenant", NOW)
    assert (running.seqs(), other.seqs()) == ([], [1])
    with pytest.raises(Conflict):
        running.write(1)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_threads_of_subgraphs_go_with_theirs_and_never_before(stores: Stores, kind: str) -> None:
    store = stores.open(kind)
    ended = Diary(store, "ended").write(50, 40, status="completed")
    with_it = [
        Diary(store, f"ended\x1f{place}").write(45, status="completed")
        for place in ("2.1\x1fsub", "3.2\x1fsub", "3.2\x1fsub\x1f1.1\x1finner")
    ]
    waiting = Diary(store, "waiting").write(50, 40, status="interrupted")
    needed = Diary(store, "waiting\x1f2.1\x1fsub").write(45, status="completed")
    orphan = Diary(store, "lost\x1f2.1\x1fsub").write(45, status="completed")
    beside = Diary(store, "ended2").write(1, status="completed")
    went = ("ended", "lost\x1f2.1\x1fsub")
    assert apply(store, dry_run=True, older_than=30 * DAY) == (5, 0, 0, went, ())
    assert apply(store, older_than=30 * DAY) == (5, 0, 0, went, ())
    assert [diary.seqs() for diary in (ended, orphan, *with_it)] == [[]] * 5
    assert [diary.seqs() for diary in (waiting, needed, beside)] == [[1, 2], [1], [1]]


def test_the_key_of_an_encrypted_thread_goes_with_it() -> None:
    store, keys = MemoryStore(), MemoryStore()
    ring = Keyring({"main": b"k" * 32}, store=keys)
    direct = CheckpointStore(store, encryption=ring)
    direct.put(ThreadKey("tenant", "t"), {"n": 1})
    assert len(keys.threads("milecastle.keys")) == 1
    report = direct.apply_retention("tenant", Retention(older_than=timedelta(0)), dry_run=True)
    assert (report.deleted, len(keys.threads("milecastle.keys"))) == (("t",), 1)
    assert direct.apply_retention("tenant", Retention(older_than=timedelta(0))).deleted == ("t",)
    assert keys.threads("milecastle.keys") == []
