"""F1, F2: calls that meet each other, or a worker, at one thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from milecastle import END, START, Context, RunCancelled, RunFailed, StateGraph, Store, interrupt
from milecastle.errors import AlreadyAnswered
from tests.acceptance.fleet.working import Trip, line, note, serving, start, until, work


def asks(state: Trip) -> dict[str, Any]:
    return {"log": [f"heard {interrupt('well?')}"]}


def at_once(call: Callable[[int], Any], count: int = 12) -> list[Any]:
    """What calls return or raise that are made at the same moment by several threads."""
    together, found = threading.Barrier(count), list[Any]()

    def one(number: int) -> None:
        together.wait()
        try:
            found.append(call(number))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.requirement("F1", api="App.submit")
def test_the_same_submit_from_many_callers_starts_one_run(store: Store) -> None:
    """Fails if ``Runner.submit`` does not look again after a conflict: most callers get it."""
    app = line(store, ("a", note("a")))
    handles = at_once(lambda _: app.submit(start(), "t", key="k"))
    assert len({handle.run_id for handle in handles}) == 1

    async def together() -> set[str]:
        made = await asyncio.gather(*(app.asubmit(start(), "u", key="k") for _ in range(12)))
        return {handle.run_id for handle in made}

    assert len(asyncio.run(together())) == 1


@pytest.mark.requirement("F1", api="App.answer")
def test_one_of_two_answers_counts_and_the_other_is_refused(store: Store) -> None:
    """Fails if ``Runner.submit`` does not look again: then the other gets a bare ``Conflict``."""
    app = line(store, ("ask", asks))
    app.submit(start(), "t")
    work(app)
    found = at_once(lambda number: app.answer("t", number))
    refused = [error for error in found if isinstance(error, Exception)]
    assert len(found) - len(refused) == 1
    assert {type(error) for error in refused} == {AlreadyAnswered}


@pytest.mark.requirement("F2", api="App.invoke")
def test_taking_over_from_a_worker_fences_it_out_first(store: Store) -> None:
    """The worker is in the first node, so the run is recorded as queued.

    Fails if ``_resumed`` takes over only what is recorded as running: then the caller runs the
    node as well, and loses against the worker.
    """
    began, may_end = threading.Event(), threading.Event()

    def waits(state: Trip) -> dict[str, Any]:
        if began.is_set():
            may_end.set()
            time.sleep(0.5)
            return {"log": ["caller"]}
        began.set()
        assert may_end.wait(60)
        return {"log": ["worker"]}

    app = line(store, ("waits", waits))
    app.submit(start(), "t")
    worker = threading.Thread(target=work, args=(app,))
    worker.start()
    assert began.wait(60)
    assert app.invoke(start(), "t", take_over=True).state["log"] == ["caller"]
    worker.join()


@pytest.mark.requirement("F5", api="App.update_state")
def test_a_sleeping_thread_is_woken_although_a_user_wrote_to_it(store: Store) -> None:
    """Fails if the line that ``update_state`` writes names no lane: then nobody wakes it."""

    async def written_in_sleep(nap: float) -> list[str]:
        def naps(state: Trip, ctx: Context) -> dict[str, Any]:
            ctx.sleep(nap)
            return {"log": ["woken"]}

        app, thread = line(store, ("naps", naps)), f"t-{nap}"

        async def is_sleeping() -> bool:
            return (await app.astate(thread)).status == "sleeping"

        handle = await app.asubmit(start(), thread)
        async with serving(app):
            await until(is_sleeping)
        await app.aupdate_state(thread, {"log": ["written"]})  # its time may have come by now
        async with serving(app):
            return (await asyncio.wait_for(handle.aresult(), 90)).state["log"]

    for nap in (0.6, 6.0, 30.0):  # on a slow machine the worker wakes it first: tried again
        if asyncio.run(written_in_sleep(nap)) == ["written", "woken"]:
            return
    pytest.fail("it was written to in its sleep, and not woken")


@pytest.mark.requirement("F2", api="Worker")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("parallel", [False, True])
def test_a_node_that_ends_the_process_ends_only_its_run(
    store: Store, error: type[BaseException], parallel: bool
) -> None:
    """Fails if a segment lets ``SystemExit`` pass: the worker ends, and runs beside it with it."""

    def exits(state: Trip) -> dict[str, Any]:
        if state["n"] < 0:
            raise error
        time.sleep(0.3)
        return {"log": ["worked"]}

    graph: StateGraph[Trip] = StateGraph(Trip, name="exits")
    graph.add_node("exits", exits).add_edge(START, "exits").add_edge("exits", END)
    if parallel:
        graph.add_node("beside", lambda state: {"log": []})
        graph.add_edge(START, "beside").add_edge("beside", END)
    app = graph.compile(store=store)
    handles = [app.submit({"n": n, "log": []}, f"t{n}") for n in (1, -1, 2)]
    work(app)
    assert [handle.result(60).status for handle in handles[::2]] == ["completed", "completed"]
    with pytest.raises(RunFailed if parallel else RunCancelled):
        handles[1].result(60)
