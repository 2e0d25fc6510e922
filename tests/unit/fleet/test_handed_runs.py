"""Runs between two workers: what was found by simulated fleets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milecastle import Context, Retry, RunFailed, StateGraph, Unavailable
from milecastle.app.runs.calls import Call
from milecastle.app.runs.planned import PlannedRun
from milecastle.engine.assignment import Assignment
from milecastle.fleet.worker import Worker
from milecastle.model.keys import ThreadKey
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import QUICK, Trip, line, note, start, until, work


def test_a_run_that_is_released_with_its_first_entry_runs_no_node() -> None:
    """Its worker began to drain after it had claimed it.

    Fails if ``Run`` does not look whether its opening entry has released it: it then runs nodes of
    a thread that is in the queue.
    """
    ran: list[str] = []

    def counts(state: Trip, ctx: Context) -> dict[str, Any]:
        ran.append(ctx.task)
        return {"log": ["counted"]}

    store = MemoryStore()
    app = line(store, ("counts", counts))
    handle = app.submit(start(), "t")
    runner = app.runner
    (info,) = store.claim("w", [runner.lane], limit=1)
    assignment = Assignment(lane=info.lane, worker="w", is_draining=lambda: True)
    call = Call(thread=handle.thread, if_exists="take_over", assignment=assignment)
    planned = runner.begin(call)
    assert isinstance(planned, PlannedRun)
    planned.finish()
    assert ran == []
    assert app.state("t").status == "queued"
    work(app)
    assert ran == ["counts"]


def test_a_retried_run_has_all_its_attempts_again() -> None:
    """And no more than those.

    Fails if a run that is handed over keeps the counts of the one before: it fails at once. Also
    if the counts start with a pause: then it has one attempt more.
    """
    tries: list[int] = []

    def fails(state: Trip, ctx: Context) -> dict[str, Any]:
        tries.append(ctx.attempt)
        if len(tries) < 5:
            raise ConnectionError("on purpose")
        return {"log": ["done"]}

    graph: StateGraph[Trip] = StateGraph(Trip, name="line")
    graph.add_node("fails", fails, retry=Retry(attempts=2, delay=0, jitter=0))
    graph.add_edges("__start__", "fails", "__end__")
    app = graph.compile(store=MemoryStore())
    app.submit(start(), "t")
    work(app)
    for _ in range(2):
        with pytest.raises(RunFailed):
            app.wait("t", timeout=60)
        app.retry("t")
        work(app)
    assert tries == [1, 2, 1, 2, 1]
    assert app.wait("t", timeout=60).state["log"] == ["done"]


class Forgetful(MemoryStore):
    """Takes a thread back and does not say so, the first time."""

    failures = 1

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        given = super().give_back(worker, key, delay=delay)
        if self.failures:
            self.failures -= 1
            raise Unavailable("out for lunch")
        return given


def test_a_thread_is_not_given_back_after_it_was_claimed_again() -> None:
    """A debt from an earlier claim ends when the thread is claimed again.

    Fails if debts are paid while a claim is under way, by the heartbeat, or after the next claim.
    """
    store = Forgetful()
    app = line(store, ("a", note("a")))
    worker = Worker([app], QUICK)
    app.submit(start(), "t")
    (claimed,) = store.claim(worker.id, [app.runner.lane], limit=1)
    calls: list[str] = []
    claim, give_back = store.claim, store.give_back

    def claims(*given: Any, **named: Any) -> Any:
        found = claim(*given, **named)
        calls.extend(["claim"] * len(found))
        return found

    def gives(*given: Any, **named: Any) -> Any:
        calls.append("give back")
        return give_back(*given, **named)

    setattr(store, "claim", claims)  # noqa: B010 - watched
    setattr(store, "give_back", gives)  # noqa: B010 - watched

    async def is_over() -> bool:
        return app.state("t").status == "completed"

    async def serve() -> None:
        vars(worker)["_segments"].owed[claimed.key] = 0.0
        running = asyncio.create_task(worker.run())
        await until(is_over)
        worker.stop()
        await running

    asyncio.run(serve())
    assert calls == ["give back", "claim"]


class Closed(MemoryStore):
    """Takes no thread back."""

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        raise Unavailable("closed on Mondays")


def test_claims_go_on_while_a_thread_cannot_be_given_back() -> None:
    """Fails if a worker that owes a thread claims nothing: its database may be down for long."""
    store = Closed()
    app = line(store, ("a", note("a")))
    worker = Worker([app], QUICK)

    async def is_over() -> bool:
        return app.state("t").status == "completed"

    async def serve() -> None:
        owed = vars(worker)["_segments"].owed
        owed.update({ThreadKey("default", "x"): 0.0, ThreadKey("default", "y"): 0.0})
        app.submit(start(), "t")
        running = asyncio.create_task(worker.run())
        await until(is_over)
        assert {key.thread for key in owed} == {"x", "y"}
        worker.stop()
        await running

    asyncio.run(serve())
