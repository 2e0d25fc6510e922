"""F7: workers run what fits their code, also if an older version of it began."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milecastle import App, Store, interrupt
from milecastle.app.runs.submission import require_shared
from milecastle.fleet.worker import Worker, WorkerOptions
from tests.acceptance.fleet.working import Trip, line, note, serving, start, until, work

EAGER = WorkerOptions(poll=0.05, heartbeat=0.2, silent_after=30.0, adopt_after=0.1)


def asks(state: Trip) -> dict[str, Any]:
    return {"log": [f"heard {interrupt('well?')}"]}


def old(store: Store) -> App[Trip]:
    return line(store, ("a", note("a")), ("ask", asks))


def new(store: Store) -> App[Trip]:
    """What is next in the old version is here, too."""
    return line(store, ("a", note("a")), ("ask", asks), ("z", note("z")))


def other(store: Store) -> App[Trip]:
    """Without the node that is next."""
    return line(store, ("b", note("b")))


def refusals(worker: Worker) -> float:
    return worker.counters.totals("segments_ended").get("refused", 0)


async def completed(app: App[Any], thread: str) -> bool:
    return (await app.astate(thread)).status == "completed"


@pytest.mark.requirement("F7", api="Worker")
def test_a_thread_that_fits_is_adopted_when_nobody_serves_its_version(store: Store) -> None:
    """It continues in the lane of the worker that adopts it.

    Fails if a worker claims in its own lanes only, and if the thread stays in the old lane.
    """
    app = old(store)
    app.submit(start(), "t")
    work(app)
    app.answer("t", "yes")

    async def main() -> None:
        async with serving(new(store), options=EAGER):
            await until(lambda: completed(new(store), "t"), 30)

    asyncio.run(main())
    assert new(store).state("t").state["log"] == ["a", "heard yes", "z"]
    (info,) = store.threads("default")
    assert info.lane == new(store).runner.lane


@pytest.mark.requirement("F7", api="Worker")
def test_a_thread_that_does_not_fit_is_given_back_and_waits(store: Store) -> None:
    """It is tried now and then, and runs as soon as a worker with its code comes.

    Fails if a refused thread is due again at once: then it is refused hundreds of times.
    """
    app = old(store)
    app.submit(start(), "t")
    work(app)
    app.answer("t", "yes")

    async def main() -> float:
        async with serving(other(store), options=EAGER) as worker:
            async with asyncio.timeout(30):
                while not refusals(worker):  # noqa: ASYNC110 - nothing tells a test
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            refused = refusals(worker)
            async with serving(app):
                await until(lambda: completed(app, "t"), 30)
        return refused

    assert 1 <= asyncio.run(main()) <= 2
    assert app.state("t").state["log"] == ["a", "heard yes"]


@pytest.mark.requirement("F7", api="Worker")
@pytest.mark.parametrize("kind", ["served", "never"])
def test_a_lane_is_left_to_its_worker(store: Store, kind: str) -> None:
    """While one serves it, though it is busy; and always, if nothing is to be adopted.

    Fails if the lanes of live workers are adopted, and if ``adopt_after=None`` is not looked at.
    """
    app = old(store)
    app.submit(start(), "t")
    if kind == "served":
        require_shared(store).beat(Worker([app]).describe())
    options = EAGER if kind == "served" else WorkerOptions(poll=0.05, adopt_after=None)

    async def main() -> None:
        async with serving(new(store), options=options):
            await asyncio.sleep(0.6)

    asyncio.run(main())
    assert new(store).state("t").status == "queued"
