"""F1: waiting for a run is told when it stops, and does not look again and again."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from milecastle import RunCancelled, Store
from milecastle.app.emitting import feed_of
from milecastle.app.runs import submission as handing
from tests.acceptance.fleet.working import Trip, line, serving, start

LONG = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a notice, nobody looks a second time."""
    for name in ("_SHORTEST", "_LONGEST", "_LONGEST_IF_TOLD"):
        monkeypatch.setattr(handing, name, 600.0)


def slow(state: Trip) -> dict[str, Any]:
    time.sleep(0.5)
    return {"log": ["slow"]}


@pytest.mark.requirement("F1")
@pytest.mark.parametrize("sync", [True, False])
def test_a_notice_ends_waiting(store: Store, sync: bool) -> None:
    """Fails if a worker publishes no notice, and if waiting does not subscribe to it."""
    app = line(store, ("slow", slow))

    async def use() -> list[str]:
        async with serving(app), asyncio.timeout(LONG):
            await app.asubmit(start(), "t")
            waiting = asyncio.to_thread(app.wait, "t", LONG) if sync else app.await_result("t")
            return (await waiting).state["log"]

    began = time.monotonic()
    assert asyncio.run(use()) == ["slow"]
    assert time.monotonic() - began < LONG  # at the end of its time, it looks anyway


def test_waiting_looks_a_few_times_however_long_a_run_takes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after it subscribes, and at each notice; fails if it looks each tenth of a second.

    How many notices reach it depends on the machine: a worker also gives notice as it starts.
    """
    app = line(store, ("slow", slow), ("again", slow), ("then", slow))
    looks = 0
    honest = handing.has_stopped

    def counted(*given: Any) -> bool:
        nonlocal looks
        looks += 1
        return honest(*given)

    monkeypatch.setattr("milecastle.app.runner.has_stopped", counted)

    async def use() -> None:
        async with serving(app), asyncio.timeout(60):
            await app.asubmit(start(), "t")
            await app.await_result("t")

    asyncio.run(use())
    assert looks < 10


def test_waiting_without_time_asks_for_no_notice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if it subscribes: that would start what it cannot use."""
    app = line(store, ("slow", slow))
    app.submit(start(), "t")
    monkeypatch.setattr("milecastle.app.runner.when_stopped", None)
    with pytest.raises(TimeoutError):
        app.wait("t", 0)


def test_waiting_that_is_cancelled_leaves_nothing_behind(store: Store) -> None:
    """Broken before: it subscribed on another thread, and nobody ended that."""
    app = line(store, ("slow", slow))
    feed = feed_of(store)
    ended: list[object] = []
    honest = feed.subscribe_soon

    def counted(key: Any, heard: Any) -> Any:
        end = honest(key, heard)
        ended.append(None)
        return lambda: (ended.pop(), end())

    vars(feed)["subscribe_soon"] = counted

    async def use() -> None:
        await app.asubmit(start(), "t")
        for microseconds in range(0, 20_000, 1_000):
            with suppress(TimeoutError):
                await asyncio.wait_for(app.await_result("t"), microseconds / 1_000_000)

    asyncio.run(use())
    assert ended == []


def test_waiting_that_is_cancelled_as_a_notice_comes_ends(store: Store) -> None:
    """Broken before: ``asyncio.wait_for`` of Python 3.11 loses that cancellation, for ever here."""
    app = line(store, ("slow", slow))
    feed = feed_of(store)
    heard: list[Any] = []
    subscribed = asyncio.Event()

    def kept(_: Any, tell: Any) -> Any:
        heard.append(tell)
        subscribed.set()
        return lambda: None

    vars(feed)["subscribe_soon"] = kept

    async def use() -> None:
        await app.asubmit(start(), "t")
        waiting = asyncio.create_task(app.await_result("t"))
        await subscribed.wait()
        await asyncio.sleep(0.5)  # it has looked again, and waits
        heard[0](None)
        asyncio.get_running_loop().call_soon(waiting.cancel)
        done, _ = await asyncio.wait([waiting], timeout=LONG)
        assert done, "it waits for another notice"
        assert waiting.cancelled()

    asyncio.run(use())


def test_a_cancelled_run_ends_waiting(store: Store) -> None:
    """Nobody serves it. Fails if cancelling publishes no notice."""
    app = line(store, ("slow", slow))

    async def use() -> None:
        await app.asubmit(start(), "t")
        waiting = asyncio.create_task(asyncio.to_thread(app.wait, "t", LONG))
        await asyncio.sleep(0.5)  # it may still look, or wait by now
        app.cancel("t")
        await waiting

    began = time.monotonic()
    with pytest.raises(RunCancelled):
        asyncio.run(use())
    assert time.monotonic() - began < LONG
