"""Group commit: shared transactions, separate outcomes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from milecastle.drivers.committer import (
    Committer,
    PartedCommitter,
    Waiter,
    committer_of,
    share_of,
)
from milecastle.drivers.loop_commits import commits_of
from milecastle.errors import Conflict, InvalidRequest, MilecastleError, StoreError, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, CommitMany, PartOf
from milecastle.stores.memory import MemoryStore
from milecastle.testing.entries import Writer


class SlowStore(MemoryStore):
    """A memory store that writes groups, slowly, and counts them."""

    blocking = True

    def __init__(self, seconds: float = 0.01, writers: int = 1) -> None:
        super().__init__()
        self._writers = writers
        self.seconds = seconds
        self.groups: list[int] = []
        self.fault: Exception | None = None
        self.held, self.let_go = threading.Event(), threading.Event()

    def commit(self, batch: Batch) -> None:
        if batch.key.thread == "holder":
            self.held.set()
            assert self.let_go.wait(30)
        time.sleep(self.seconds)
        super().commit(batch)

    @property
    def writers(self) -> int:
        return self._writers

    @property
    def commit_many(self) -> CommitMany:
        return self._commit_many

    def _commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        time.sleep(self.seconds)
        self.groups.append(len(batches))
        if self.fault is not None:
            raise self.fault
        return [self._outcome(batch) for batch in batches]

    def _outcome(self, batch: Batch) -> StoreError | None:
        try:
            super().commit(batch)
        except Conflict as conflict:
            return conflict
        return None


def first_batch(thread: str) -> Batch:
    writer = Writer(ThreadKey("t", thread))
    return writer.batch(writer.plan(), runs=(writer.run,))


def first_batches(count: int) -> list[Batch]:
    return [first_batch(f"thread-{number}") for number in range(count)]


async def commit_all(committer: Committer, batches: list[Batch]) -> list[BaseException | None]:
    commits = commits_of(committer)
    return await asyncio.gather(*map(commits.commit, batches), return_exceptions=True)


def test_many_batches_share_few_transactions() -> None:
    store = SlowStore()
    outcomes = asyncio.run(commit_all(Committer(store), first_batches(100)))
    assert outcomes == [None] * 100
    assert sum(store.groups) == 100
    assert len(store.groups) < 10
    assert len(store.threads("t")) == 100


def test_a_conflict_fails_one_batch_alone() -> None:
    store = SlowStore()
    batches = first_batches(10)
    outcomes = asyncio.run(commit_all(Committer(store), [*batches, batches[3]]))
    assert outcomes[:10] == [None] * 10
    assert isinstance(outcomes[10], Conflict)


@pytest.mark.parametrize("fault", [Unavailable("the disk is gone"), ValueError("a bug")])
def test_any_other_error_fails_every_batch_of_the_group(fault: Exception) -> None:
    store = SlowStore()
    store.fault = fault
    outcomes = asyncio.run(commit_all(Committer(store), first_batches(5)))
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    assert store.threads("t") == []


@pytest.mark.parametrize("kind", [StoreError, InvalidRequest])
def test_a_refusal_of_one_batch_names_no_other_thread(kind: type[MilecastleError]) -> None:
    """Failed: every run of the group, of every tenant, got the error of one thread."""

    class Refusing(SlowStore):
        def _commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
            for batch in batches:
                if batch.key == bad.key:
                    raise kind(f"thread '{bad.key.thread}' is damaged")
            return super()._commit_many(batches)

    batches = first_batches(5)
    bad = batches[3]
    store = Refusing()
    outcomes = asyncio.run(commit_all(Committer(store), batches))
    assert [outcome is None for outcome in outcomes] == [True, True, True, False, True]
    assert bad.key.thread in str(outcomes[3])


def test_a_group_is_never_larger_than_allowed_and_a_full_queue_makes_writers_wait() -> None:
    store = SlowStore(0.001)
    outcomes = asyncio.run(commit_all(Committer(store, group=4, room=8), first_batches(50)))
    assert outcomes == [None] * 50
    assert max(store.groups) <= 4


def test_a_cancelled_writer_waits_until_the_outcome_is_known() -> None:
    store = SlowStore(0.05)
    [batch] = first_batches(1)

    async def cancel_soon() -> bool:
        task = asyncio.create_task(commits_of(Committer(store)).commit(batch))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return store.read(batch.key) is not None

    assert asyncio.run(cancel_soon())


def test_the_thread_ends_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milecastle.drivers.committer._IDLE", 0.01)
    store = SlowStore(0)
    committer = Committer(store)
    asyncio.run(commit_all(committer, first_batches(1)))
    deadline = time.monotonic() + 60
    while any(thread.name == "milecastle-committer" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert asyncio.run(commit_all(committer, [first_batch("later")])) == [None]


def test_all_runs_of_a_process_share_the_committer_of_a_store() -> None:
    store, other = SlowStore(), SlowStore()
    assert committer_of(store) is committer_of(store)
    assert committer_of(store) is not committer_of(other)
    assert committer_of(MemoryStore()) is None


class PartedMemory(SlowStore):
    """Threads that begin with ``b`` are in another part, which has its own groups."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = {"a": SlowStore(), "b": SlowStore()}

    @property
    def part_of(self) -> PartOf:
        return lambda key: self.parts[key.thread[0]]


def test_a_part_that_hangs_holds_up_its_own_commits_only() -> None:
    """Fails if all parts of a store share one queue."""
    store = PartedMemory()
    committer = committer_of(store)
    assert isinstance(committer, PartedCommitter)
    assert committer is committer_of(store)
    store.parts["b"].seconds = 5.0

    async def meet() -> list[object]:
        commits = commits_of(committer)
        hanging = asyncio.create_task(commits.commit(first_batch("b hangs")))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await asyncio.gather(*(commits.commit(first_batch(f"a {n}")) for n in range(9)))
        took = time.monotonic() - began
        is_over = hanging.done()
        await hanging
        return [took < 4, is_over]

    assert asyncio.run(meet()) == [True, False]
    committer.commit(first_batch("a last"))
    assert sum(store.parts["a"].groups) == 9
    assert len(store.parts["a"].threads("t")) == 10
    assert store.groups == []


def test_parts_of_a_store_that_is_gone_are_unavailable() -> None:
    """Fails if its committer keeps the store, or fails with another error."""
    committer = PartedCommitter(PartedMemory())
    with pytest.raises(Unavailable, match="closed or collected"):
        committer.commit(first_batch("a"))


def test_a_store_that_is_gone_is_unavailable() -> None:
    committer = Committer(SlowStore())
    [outcome] = asyncio.run(commit_all(committer, first_batches(1)))
    assert isinstance(outcome, Unavailable)


def test_run_that_was_idle_for_long_leaves_half_for_the_next_turn() -> None:
    assert share_of(200, idle=0.004, quickest=0.001) == 100
    assert share_of(17, idle=0.004, quickest=0.001) == 9


@pytest.mark.parametrize(
    ("waiting", "idle", "quickest"),
    [(200, 0.0, 0.001), (200, 0.004, 0.02), (200, 0.004, float("inf")), (16, 0.004, 0.001)],
)
def test_busy_slow_and_small_groups_are_not_divided(
    waiting: int, idle: float, quickest: float
) -> None:
    assert share_of(waiting, idle=idle, quickest=quickest) == waiting


def test_no_batch_is_forgotten_while_the_thread_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("milecastle.drivers.committer._IDLE", 0.0001)
    store = SlowStore(0)
    committer = Committer(store)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    async def one_after_the_other() -> None:
        for number, batch in enumerate(first_batches(1_000)):
            await asyncio.wait_for(commits_of(committer).commit(batch), 60)
            if number % 3 == 0:
                await asyncio.sleep(0.0001)

    try:
        asyncio.run(one_after_the_other())
    finally:
        sys.setswitchinterval(switch)
    assert sum(store.groups) == 1_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_does_not_wait_for_the_thread_of_its_parent() -> None:
    store = SlowStore(0.2)
    committer = committer_of(store)
    assert isinstance(committer, Committer)
    before, after = first_batches(2)

    async def fork_while_it_writes() -> int:
        writing = asyncio.create_task(commits_of(committer).commit(before))
        await asyncio.sleep(0.05)
        child = os.fork()
        if not child:
            os._exit(_commits_alone(committer, after))
        await writing
        return child

    _, status = os.waitpid(asyncio.run(fork_while_it_writes()), 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _commits_alone(committer: Committer, batch: Batch) -> int:
    """The exit code of a child: 0 if it could write; a child that waits for too long is killed."""
    asyncio.events._set_running_loop(None)  # the loop is the parent's
    signal.alarm(60)
    try:
        [outcome] = asyncio.run(commit_all(committer, [batch]))
    except BaseException:
        return 1
    return 0 if outcome is None else 1


# ---- threads


def commit_in_threads(committer: Committer, batches: list[Batch]) -> list[BaseException | None]:
    """What became of batches that as many threads write at the same time."""
    with ThreadPoolExecutor(len(batches)) as pool:
        futures = [pool.submit(committer.commit, batch) for batch in batches]
        return [future.exception(timeout=30) for future in futures]


def test_single_thread_writes_without_a_group() -> None:
    store = SlowStore()
    committer = Committer(store)
    batch = first_batch("alone")
    committer.commit(batch)
    assert store.read(batch.key) is not None
    with pytest.raises(Conflict):
        committer.commit(batch)
    assert store.groups == []


def test_many_threads_share_few_transactions() -> None:
    store = SlowStore(0.02)
    batches = first_batches(32)
    assert commit_in_threads(Committer(store), batches) == [None] * 32
    assert all(store.read(batch.key) for batch in batches)
    assert len(store.groups) < 16


def test_as_many_threads_as_the_store_can_serve_write_by_themselves() -> None:
    store = SlowStore(0.2, writers=4)
    assert commit_in_threads(Committer(store), first_batches(4)) == [None] * 4
    assert store.groups == []
    assert commit_in_threads(Committer(store), first_batches(12)[4:]) == [None] * 8
    assert sum(store.groups) >= 1


def test_a_conflict_of_one_thread_fails_it_alone() -> None:
    store = SlowStore(0.02)
    batches = first_batches(8)
    outcomes = commit_in_threads(Committer(store), [*batches, *batches])
    assert outcomes.count(None) == 8
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 8


def test_threads_and_loops_wait_in_one_queue_and_none_forever() -> None:
    store = SlowStore(0.001)
    committer = Committer(store, group=5, room=8)
    threads, runs = first_batches(60)[:30], first_batches(60)[30:]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(asyncio.run, commit_all(committer, runs))
            assert commit_in_threads(committer, threads) == [None] * 30
            assert beside.result(timeout=30) == [None] * 30
    finally:
        sys.setswitchinterval(switch)
    assert max(store.groups) <= 5


def test_any_other_error_reaches_every_thread_of_the_group() -> None:
    store = SlowStore(0.02)
    store.fault = Unavailable("the disk is gone")
    outcomes = commit_in_threads(Committer(store), first_batches(9))
    alone = outcomes.count(None)
    assert 1 <= alone < 9, "the first one wrote alone"
    assert sum(isinstance(outcome, Unavailable) for outcome in outcomes) == 9 - alone


# ---- at odd moments


def hold_a_place(committer: Committer, store: SlowStore) -> threading.Thread:
    """Have a writer write until it is released, so that the next one has to wait."""
    holder = threading.Thread(target=committer.commit, args=[first_batch("holder")])
    holder.start()
    assert store.held.wait(30)
    return holder


def let_go_once_somebody_waits(committer: Committer, store: SlowStore) -> None:
    until = time.monotonic() + 30
    while not vars(committer)["_waiting"] and time.monotonic() < until:
        time.sleep(0.01)
    store.let_go.set()


def test_run_cancelled_while_its_outcome_is_on_the_way_is_released() -> None:
    class Instant(Committer):
        def add(self, waiter: Waiter) -> None:
            waiter.bell([waiter])

    async def cancel_at_once() -> None:
        commits = commits_of(Instant(store))
        for number in range(20):
            task = asyncio.create_task(commits.commit(first_batch(f"thread-{number}")))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 60)

    store = SlowStore()
    asyncio.run(cancel_at_once())


def test_run_cancelled_twice_still_waits_until_the_outcome_is_known() -> None:
    store = SlowStore(1.0)
    batch = first_batch("cancelled")

    async def cancel_twice() -> bool:
        task = asyncio.create_task(commits_of(Committer(store)).commit(batch))
        for _ in range(2):
            await asyncio.sleep(0.02)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return store.read(batch.key) is not None

    assert asyncio.run(cancel_twice())


@pytest.mark.parametrize("moment", ["before it waits", "after it was reported"])
def test_a_thread_that_is_interrupted_does_not_hang(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Gate:
        def __init__(self) -> None:
            self._lock = threading.Lock()
            self._calls = 0

        def acquire(self) -> None:
            self._calls += 1
            if self._calls == 2 and moment == "before it waits":
                raise KeyboardInterrupt
            assert self._lock.acquire(timeout=60), "it would wait forever"
            if self._calls == 2:
                raise KeyboardInterrupt

        def release(self) -> None:
            self._lock.release()

    class Interrupted(Waiter):
        gate: Any = msgspec.field(default_factory=Gate)

    monkeypatch.setattr("milecastle.drivers.committer._ThreadWaiter", Interrupted)
    store = SlowStore()
    committer = Committer(store)
    holder = hold_a_place(committer, store)
    batch = first_batch("interrupted")
    helper = threading.Thread(target=let_go_once_somebody_waits, args=[committer, store])
    if moment == "after it was reported":
        helper.start()
    with pytest.raises(KeyboardInterrupt):
        committer.commit(batch)
    store.let_go.set()
    holder.join()
    assert (store.read(batch.key) is not None) == (moment == "after it was reported")


def test_where_no_thread_can_be_started_each_writes_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SlowStore()
    committer = Committer(store)
    holder = hold_a_place(committer, store)
    threading.Timer(0.2, store.let_go.set).start()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    batch = first_batch("thread")
    committer.commit(batch)
    assert store.read(batch.key) is not None
    [outcome] = asyncio.run(commit_all(committer, [first_batch("run")]))
    assert isinstance(outcome, Unavailable)
    monkeypatch.setattr(threading.Thread, "start", start)
    holder.join()
    assert asyncio.run(commit_all(committer, [first_batch("run")])) == [None]


def test_store_that_returns_too_few_outcomes_leaves_no_run_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tell_nobody(batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        return []

    store = SlowStore()
    monkeypatch.setattr(store, "_commit_many", tell_nobody)
    outcomes = asyncio.run(commit_all(Committer(store), first_batches(3)))
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3


def test_a_commit_within_a_commit_of_the_same_thread_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the collector closes somebody's stream in the middle of one."""
    store = SlowStore(0)
    committer = Committer(store)
    refused: list[Exception] = []

    def commit(batch: Batch) -> None:
        try:
            committer.commit(first_batch("inner"))
        except Unavailable as error:
            refused.append(error)

    monkeypatch.setattr(store, "commit", commit)
    committer.commit(first_batch("outer"))
    assert len(refused) == 1


def test_place_that_an_interruption_left_taken_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("milecastle.drivers.committer._LEFT", 0.05)
    store = SlowStore()
    committer = Committer(store)
    vars(committer)["_places"][-1].acquire()  # as between taking it and writing
    assert commit_in_threads(committer, first_batches(3)) == [None] * 3
    assert asyncio.run(commit_all(committer, [first_batch("run")])) == [None]
