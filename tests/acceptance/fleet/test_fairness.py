"""F8: tenants share the workers, and a tenant puts some of its runs before others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from milecastle import App, InvalidRequest, Store, ThreadKey, current, interrupt
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.stores import ClaimStore, Limit
from tests.acceptance.fleet.working import Trip, line, start, work

ONE = WorkerOptions(concurrency=1, poll=0.05)


def recording(store: Store, order: list[str]) -> App[Trip]:
    """An app whose runs note when they start."""

    def noted(state: Trip) -> dict[str, Any]:
        thread = current().thread
        order.append(thread.thread if thread else "")
        return {"n": state["n"] + 1}

    return line(store, ("noted", noted))


def run_one_by_one(app: App[Trip]) -> None:
    asyncio.run(Worker([app], ONE).run_until_idle())


@pytest.mark.requirement("F8", api="Worker")
def test_another_tenant_does_not_wait_for_a_long_queue(store: Store) -> None:
    """Failed with claims in the order of time: the first run of the second tenant came last."""
    order: list[str] = []
    app = recording(store, order)
    for number in range(20):
        app.submit(start(), ThreadKey("many", f"many-{number:02}"))
    app.submit(start(), ThreadKey("one", "single"))
    run_one_by_one(app)
    assert order.index("single") <= 2
    assert len(order) == 21


@pytest.mark.requirement("F8", api="App.submit")
def test_higher_priorities_start_first(store: Store) -> None:
    """Failed with a priority that is not in the line of the thread."""
    order: list[str] = []
    app = recording(store, order)
    for number, priority in enumerate((0, 7, -3, 7, 1)):
        app.submit(start(), f"{number}", priority=priority)
    run_one_by_one(app)
    assert order == ["1", "3", "4", "0", "2"]


@pytest.mark.requirement("F8", api="App.submit")
def test_a_run_keeps_its_priority(store: Store) -> None:
    """Through a question, an answer, a failure and a retry; the next run has its own.

    Failed without the priority in the assignment of the worker, of ``answer`` and of ``retry``.
    """
    fails = [True]

    def asks(state: Trip) -> dict[str, Any]:
        return {"log": [f"heard {interrupt('well?')}"]}

    def breaks(state: Trip) -> dict[str, Any]:
        if fails[0]:
            raise ValueError
        return {}

    app = line(store, ("asks", asks), ("breaks", breaks))
    key = app.submit(start(), "t", priority=5).thread
    seen = [_priority(store, key)]
    calls: list[Callable[[], object]] = [lambda: app.answer("t", "yes"), lambda: app.retry("t")]
    for call in calls:
        work(app)
        seen.append(_priority(store, key))
        call()
        seen.append(_priority(store, key))
    app.update_state("t", {"n": 3})
    seen.append(_priority(store, key))
    assert seen == [5] * 6
    fails[0] = False
    asyncio.run(app.aretry("t"))
    work(app)
    assert _priority(store, key) == 5
    app.submit({"n": 1, "log": []}, "t")
    assert _priority(store, key) == 0


@pytest.mark.requirement("F8", api="Worker")
def test_workers_keep_a_limit_of_concurrency(store: Store) -> None:
    """Failed with claims that do not look at limits: all ran at once."""
    running: list[int] = []
    most: list[int] = []

    async def counted(state: Trip) -> dict[str, Any]:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0.02)
        running.pop()
        return {}

    app = line(store, ("counted", counted))
    for number in range(8):
        app.submit(start(), f"{number}")
    assert isinstance(store, ClaimStore)
    store.set_limit(Limit(graph="line", concurrency=2))
    work(app)
    assert max(most) <= 2
    assert {info.status for info in app.threads()} == {"completed"}


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_has_bounds(store: Store, priority: int) -> None:
    app = recording(store, [])
    with pytest.raises(InvalidRequest, match="-100 to 100"):
        app.submit(start(), "t", priority=priority)


def _priority(store: Store, key: ThreadKey) -> int | None:
    info = store.thread(key)
    return info.priority if info else None
