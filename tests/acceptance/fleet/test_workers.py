"""F2 to F7: workers share threads, lose nothing, and leave what is not theirs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from milecastle import Context, Store
from milecastle.app.clock import SystemClock
from milecastle.app.runs import starting
from milecastle.errors import Unavailable
from milecastle.ports.claims import ClaimStore
from milecastle.testing import with_store
from tests.acceptance.fleet.working import (
    QUICK,
    STRICT,
    Trip,
    line,
    note,
    serving,
    start,
    until,
    work,
)


@pytest.mark.requirement("F2")
def test_each_thread_is_run_by_one_worker(store: Store) -> None:
    """Fails if ``claim`` does not compare: then nodes run several times."""
    ran: list[str] = []

    async def slow(state: Trip, ctx: Context) -> dict[str, Any]:
        ran.append(ctx.thread.thread if ctx.thread else "")
        await asyncio.sleep(0.05)
        return {"log": ["slow"]}

    app = line(store, ("slow", slow))

    async def serve() -> None:
        handles = [await app.asubmit(start(), f"t{n}") for n in range(40)]
        async with serving(app), serving(app), serving(app):
            for handle in handles:
                assert (await handle.aresult()).status == "completed"

    asyncio.run(serve())
    assert sorted(ran) == sorted(f"t{n}" for n in range(40))


@pytest.mark.requirement("F5")
def test_a_sleeping_run_is_woken_in_time(store: Store) -> None:
    """Fails if its time is not looked up: then it waits for the next poll."""

    def naps(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.sleep(0.6)
        return {"log": ["woken"]}

    app = line(store, ("a", note("a")), ("naps", naps))

    async def serve() -> float:
        loop = asyncio.get_running_loop()
        handle = await app.asubmit(start(), "t")
        async with serving(app, options=QUICK.replaced(poll=60.0)):
            await until(lambda: is_at(app, "sleeping"))
            began = loop.time()
            assert (await handle.aresult()).state["log"] == ["a", "woken"]
            return loop.time() - began

    assert asyncio.run(serve()) < 30


async def is_at(app: Any, status: str, thread: str = "t") -> bool:
    return bool((await app.astate(thread)).status == status)


async def drains(caplog: pytest.LogCaptureFixture) -> bool:
    return " drains " in caplog.text


@pytest.mark.requirement("F6")
def test_a_draining_worker_releases_its_runs_with_their_step(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The node that runs is not repeated, and another worker continues at once.

    Fails if ``Saver.batch`` does not release: the first worker then runs to the end. The node ends
    when the worker makes no more claims: one under way would take the thread back.
    """
    caplog.set_level("INFO", "milecastle.fleet")
    began, may_end = threading.Event(), threading.Event()
    ran: list[str] = []

    def waits(state: Trip) -> dict[str, Any]:
        ran.append("waits")
        began.set()
        assert may_end.wait(60)
        return {"log": ["waited"]}

    app = line(store, ("waits", waits), ("b", note("b")))

    async def serve() -> None:
        handle = await app.asubmit(start(), "t")
        async with serving(app) as worker:
            assert await asyncio.to_thread(began.wait, 20)
            worker.stop()
            await until(lambda: drains(caplog))
            may_end.set()
        info = store.thread(handle.thread)
        assert info is not None
        assert (info.status, info.worker) == ("queued", "")
        assert (await app.astate("t")).state["log"] == ["waited"]
        async with serving(app):
            assert (await handle.aresult()).state["log"] == ["waited", "b"]
        assert ran == ["waits"]
        assert [run.status for run in store.runs(handle.thread)] == ["completed"]

    asyncio.run(serve())


@pytest.mark.requirement("F6")
def test_what_takes_longer_than_the_grace_period_is_released_too(store: Store) -> None:
    """It is repeated by the next worker, and nothing is recorded as failed or cancelled."""
    ran: list[str] = []

    async def long(state: Trip) -> dict[str, Any]:
        ran.append("long")
        if len(ran) == 1:
            await asyncio.sleep(60)
        return {"log": ["long"]}

    app = line(store, ("long", long))
    hasty = QUICK.replaced(grace=0.1)

    async def began() -> bool:
        return bool(ran)

    async def serve() -> None:
        handle = await app.asubmit(start(), "t")
        async with serving(app, options=hasty):
            await until(began)
        assert (await app.astate("t")).status == "queued"
        async with serving(app):
            assert (await handle.aresult()).state["log"] == ["long"]
        assert [run.status for run in store.runs(handle.thread)] == ["completed"]
        assert store.failure(handle.thread, handle.run_id) is None

    asyncio.run(serve())
    assert ran == ["long", "long"]


@pytest.mark.requirement("F4")
def test_a_worker_that_lost_a_thread_drops_it_and_records_nothing(store: Store) -> None:
    """Another worker has claimed it meanwhile. Fails if a lost segment records its cancellation."""
    assert isinstance(store, ClaimStore)
    ran: list[str] = []

    async def long(state: Trip) -> dict[str, Any]:
        ran.append("long")
        if len(ran) == 1:
            await asyncio.sleep(60)
        return {"log": ["long"]}

    app = line(store, ("long", long))

    async def began() -> bool:
        return bool(ran)

    async def serve() -> None:
        handle = await app.asubmit(start(), "t")
        async with serving(app) as first:
            await until(began)
            store.retire(first.id)  # as if it had been silent

            async def dropped() -> bool:
                return not first.describe().running and len(ran) > 1

            await until(dropped)
            assert (await handle.aresult()).status == "completed"
        statuses = [run.status for run in store.runs(handle.thread)]
        assert set(statuses) <= {"completed", "superseded"}
        assert store.failure(handle.thread, handle.run_id) is None or "superseded" in statuses

    asyncio.run(serve())


@pytest.mark.requirement("F7")
def test_a_thread_of_other_code_is_left_alone(store: Store) -> None:
    old = line(store, ("a", note("a")), ("b", note("b")))
    new = line(store, ("a", note("a")), ("c", note("c")))
    handle = old.submit(start(), "t")
    work(new)
    assert new.state("t").status == "queued"
    work(new, old)
    assert handle.result(timeout=60).state["log"] == ["a", "b"]


@pytest.mark.requirement("F3")
def test_threads_of_a_silent_worker_are_taken_over(store: Store) -> None:
    """A worker that was killed leaves its claim. Fails without ``reclaim`` in the heartbeat."""
    assert isinstance(store, ClaimStore)
    app = line(store, ("a", note("a")))
    handle = app.submit(start(), "t")

    async def serve() -> None:
        async with serving(app, options=STRICT) as living:
            await until(lambda: is_at(app, "completed"))
            store.beat(_dead(living.describe()))
            again = app.submit(start(), "t", again=True)
            claimed = store.claim("dead", living.lanes, limit=1)
            if claimed:  # or the living one was faster
                assert (await again.aresult()).state["log"] == ["a", "a"]

    asyncio.run(serve())
    assert handle.thread.thread == "t"


def _dead(info: Any) -> Any:
    import msgspec.structs

    return msgspec.structs.replace(info, id="dead")


@pytest.mark.requirement("F11")
def test_a_worker_says_what_it_does(store: Store) -> None:
    """And the lanes say how much there is to do, and for how long it has waited."""
    assert isinstance(store, ClaimStore)
    app = line(store, ("a", note("a")))

    async def serve() -> None:
        async with serving(app) as worker:

            async def listed() -> bool:
                return [found.id for found in store.workers()] == [worker.id]

            await until(listed)
            assert store.workers()[0].capacity == QUICK.concurrency
            assert worker.is_ready
        assert store.workers() == []
        for number in range(3):
            await app.asubmit(start(), f"t{number}", delay=60.0 * (number == 2))
        (depth,) = store.depths()
        assert depth.lane == f"line@{app.fingerprint}"
        assert (depth.due, depth.later, depth.running) == (2, 1, 0)
        assert 0 <= depth.oldest < 60

    asyncio.run(serve())


class Behind:
    """The clock of a machine that is a minute late."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.new_id = self._clock.new_id
        self.monotonic = self._clock.monotonic

    def now(self) -> int:
        return self._clock.now() - 60_000_000


class Ahead(Behind):
    """The clock of a machine that is an hour early."""

    def now(self) -> int:
        return self._clock.now() + 3_600_000_000


@pytest.mark.requirement("F5")
def test_a_worker_whose_clock_is_ahead_sleeps_no_longer(store: Store) -> None:
    """Fails if the end of a sleep is computed by the worker's clock: then it is an hour later."""

    def naps(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.sleep(0.3)
        return {"log": ["woken"]}

    app = line(store, ("naps", naps))

    async def serve() -> None:
        async with serving(with_store(app, store, clock=Ahead())):
            await app.asubmit(start(), "t")
            await until(lambda: is_at(app, "completed"))

    asyncio.run(serve())


@pytest.mark.requirement("F5")
def test_a_worker_whose_clock_is_behind_wakes_sleepers_in_time(store: Store) -> None:
    """The store's clock decides, and the log does not grow while the worker's catches up.

    Fails if segments run with the worker's clock: then each sleeps again at once.
    """

    def naps(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.sleep(0.3)
        return {"log": ["woken"]}

    app = line(store, ("naps", naps))
    late = with_store(app, store, clock=Behind())

    async def serve() -> None:
        async with serving(app):
            await app.asubmit(start(), "t")
            await until(lambda: is_at(app, "sleeping"))
        async with serving(late):
            await until(lambda: is_at(app, "completed"))

    asyncio.run(serve())
    assert len(list(app.history("t"))) <= 5


def test_editing_a_queued_thread_takes_it_from_the_workers(store: Store) -> None:
    """Its run is closed, and it waits to be handed over again.

    Fails if ``supersede_running`` does not know queued runs: then it is queued for nobody.
    """
    app = line(store, ("a", note("a")))
    handle = app.submit(start(), "t")
    app.update_state("t", {"n": 5})
    assert app.state("t").status == "interrupted"
    assert store.failure(handle.thread, handle.run_id) is not None
    work(app)
    assert app.state("t").state["n"] == 5
    app.retry("t")
    work(app)
    assert app.wait("t", timeout=60).state == {"n": 6, "log": ["a"]}


@pytest.mark.requirement("F3")
def test_a_claim_of_unknown_outcome_is_given_back(store: Store) -> None:
    """It was written, but the connection was lost before the worker learned of it.

    Fails if ``Claimer.check`` does not look for threads without a segment: the worker is alive, so
    nobody else takes them.
    """
    assert isinstance(store, ClaimStore)
    app = line(store, ("a", note("a")))

    async def serve() -> None:
        async with serving(app) as worker:
            await until(lambda: _is_listed(store, worker.id))
            handle = await app.asubmit(start(), "t", delay=0.3)
            await asyncio.sleep(0.3)
            store.claim(worker.id, worker.lanes, limit=1)  # the worker does not know of this one
            async with asyncio.timeout(60):
                assert (await handle.aresult()).status == "completed"

    asyncio.run(serve())


async def _is_listed(store: ClaimStore, worker: str) -> bool:
    return worker in [found.id for found in store.workers()]


@pytest.mark.requirement("F5")
def test_a_read_that_fails_when_a_run_wakes_does_not_end_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the run as failed, without a retry: a schedule never fired again."""
    honest, reads = getattr(starting, "_rows"), list[str]()  # noqa: B009 - it is private

    def rows(*given: Any) -> Any:
        reads.append("rows")
        if len(reads) == 1:
            raise Unavailable("on purpose")
        return honest(*given)

    def naps(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.sleep(0.1)
        return {"log": ["woken"]}

    monkeypatch.setattr(starting, "_rows", rows)
    app = line(store, ("naps", naps))

    async def serve() -> None:
        handle = await app.asubmit(start(), "t")
        async with serving(app):
            assert (await handle.aresult()).status == "completed"

    asyncio.run(serve())
    assert len(reads) > 1
