"""The time of a store does not go back, and goes by no caller's clock."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import msgspec.structs
import pytest

from milecastle import RunInProgress
from milecastle.app.runs.ownership import refuse_busy
from milecastle.fleet.worker import Worker
from milecastle.model.run import Owner
from milecastle.ports.claims import SteadyTime, system_time
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_claims import LANE, a_worker, names, queued
from tests.acceptance.fleet.working import QUICK, line, note, start

HOUR = 3600 * 1_000_000


class Clock:
    def __init__(self) -> None:
        self.offset = 0

    def __call__(self) -> int:
        return system_time() + self.offset


def test_a_clock_that_is_set_back_continues_from_where_it_was() -> None:
    clock = Clock()
    steady = SteadyTime(source=clock)
    before = steady()
    clock.offset = -HOUR
    after = steady()
    assert before <= after < before + 60_000_000
    time.sleep(0.05)
    assert steady() >= after + 40_000
    clock.offset = HOUR
    assert steady() >= before + HOUR


def test_what_was_due_on_sqlite_stays_due_if_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed: runs that were queued before were due an hour later."""
    store = SqliteStore(tmp_path / "a.db")
    queued(store, "a")
    clock = Clock()
    clock.offset = -HOUR
    late = partial(SteadyTime, source=clock)
    monkeypatch.setattr("milecastle.stores.sqlite.store.SteadyTime", late)
    again = SqliteStore(tmp_path / "a.db")
    time.sleep(0.01)
    assert names(again.claim("one", [LANE], limit=9)) == ["a"]
    queued(again, "b", 2, due_at=-50_000)
    assert again.claim("one", [LANE], limit=9) == []
    time.sleep(0.1)
    assert names(again.claim("one", [LANE], limit=9)) == ["b"]
    store.close()
    again.close()


@pytest.mark.parametrize("offset", [HOUR, -HOUR])
def test_a_delay_goes_by_the_clock_of_the_store(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed: a caller whose clock was an hour fast started its run an hour late."""
    real = time.time_ns
    monkeypatch.setattr("milecastle.app.clock.time_ns", lambda: real() + offset * 1000)
    store = MemoryStore()
    app = line(store, ("a", note("a")))
    handle = app.submit(start(), "t", delay=5)
    info = store.thread(handle.thread)
    assert info is not None
    assert info.due_at is not None
    assert 0 < info.due_at - store.now() <= 5_000_000


def test_callers_leave_a_worker_alone_for_as_long_as_it_may_be_silent() -> None:
    """Failed: they took its run after 15 seconds, whatever its options said."""
    clock = Clock()
    store = MemoryStore(now=clock)
    owner = Owner(host="elsewhere", boot_id="b" * 36, pid=1, started="1")
    store.beat(a_worker("one", silent_after=60.0))
    writer = queued(store, "a", status="running", due_at=None, worker="one")
    record = msgspec.structs.replace(writer.run, owner=owner, status="running")
    clock.offset = 50 * 1_000_000
    with pytest.raises(RunInProgress):
        refuse_busy(store, record, 1)
    clock.offset = 61 * 1_000_000
    refuse_busy(store, record, 1)


def test_a_worker_says_how_long_it_may_be_silent() -> None:
    async def describe() -> float:
        worker = Worker([line(MemoryStore(), ("a", note("a")))], QUICK.replaced(silent_after=77.0))
        return worker.describe().silent_after

    assert asyncio.run(describe()) == 77.0


def test_a_pause_while_the_clock_is_read_does_not_put_it_ahead() -> None:
    """Fails if the ticks are read first: a busy machine then made stores differ by milliseconds."""
    pauses = [0.05]

    def slow() -> int:
        if pauses:
            time.sleep(pauses.pop())
        return system_time()

    now = SteadyTime(source=slow)
    now()
    assert now() <= system_time() + 10_000
