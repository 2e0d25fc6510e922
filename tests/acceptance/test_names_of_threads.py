"""A caller never starts a thread under a name that is ours, nor discards a run of another graph."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    InvalidRequest,
    ResumeRefused,
    Schedules,
    StateGraph,
    ThreadKey,
    Worker,
    interrupt,
)
from milecastle.fleet.bulk import job_key
from milecastle.fleet.worker import WorkerOptions
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import work

QUICK = WorkerOptions(poll=0.05, heartbeat=0.2, silent_after=30.0)
OURS = (
    "schedule@@report",
    "tick@@report@2026-01-01T00:00:00Z",
    "bulk@@1",
    "session@@ann",
    "t\x1fa",
)


class Day(TypedDict, total=False):
    day: str


def report(store: MemoryStore, name: str = "report", *, asks: bool = False) -> App[Day]:
    graph: StateGraph[Day] = StateGraph(Day, name=name)

    @graph.node
    def write(state: Day) -> dict[str, Any]:
        return {"day": interrupt("which?")} if asks else {}

    graph.add_edges(START, "write", END)
    if name == "report":
        graph.schedule(timedelta(hours=1), input={"day": "x"})
    return graph.compile(store=store)


STARTS: dict[str, Callable[[App[Day], ThreadKey], object]] = {
    "invoke": lambda app, key: app.invoke({"day": "x"}, key),
    "ainvoke": lambda app, key: asyncio.run(app.ainvoke({"day": "x"}, key)),
    "stream": lambda app, key: list(app.stream({"day": "x"}, key)),
    "submit": lambda app, key: app.submit({"day": "x"}, key, if_busy="cancel"),
    "queue": lambda app, key: app.submit({"day": "x"}, key, if_busy="queue"),
    "if_absent": lambda app, key: app.submit({"day": "x"}, key, if_absent=True),
    "fork": lambda app, key: app.fork("other", None, key),
    "put": lambda app, key: CheckpointStore(app.store).put(key, {"day": "x"}),
    "by name": lambda app, key: app.submit_many({key.thread: {"day": "x"}}),
}


@pytest.mark.parametrize("thread", OURS)
@pytest.mark.parametrize("how", STARTS)
def test_names_of_our_own_threads_cannot_be_started(how: str, thread: str) -> None:
    """Every way was open: one request ended a schedule, and replaced firings and jobs."""
    store = MemoryStore()
    app = report(store)
    app.invoke({"day": "y"}, "other")
    with pytest.raises(InvalidRequest, match="a thread's name cannot contain"):
        STARTS[how](app, ThreadKey("default", thread))
    assert [info.key.thread for info in store.threads("default")] == ["other"]


def test_thread_of_a_subgraph_is_resumed_through_its_parent() -> None:
    """It was run by its key, behind the back of its parent."""
    app = report(MemoryStore())
    with pytest.raises(InvalidRequest, match="subgraphs"):
        app.resume(ThreadKey("default", "t\x1f1.1\x1fsub"))


def test_firing_is_answered_by_its_name() -> None:
    """It has a name of ours, and is a thread of the user's graph. Fails if it cannot be named."""
    app = report(MemoryStore(), asks=True)
    (schedule,) = Schedules(app).runs.values()
    key = schedule.submit(3600 * 1_000_000, "default").thread
    work(app)
    assert key.thread == "tick@@report@1970-01-01T01:00:00Z"
    app.answer(key.thread, "monday")
    work(app)
    assert app.state(key).state == {"day": "monday"}
    assert app.delete(key)


def test_worker_starts_although_the_thread_of_a_schedule_is_of_another_graph(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ended with ``ResumeRefused`` at each start, and no thread of the graph was run."""
    store = MemoryStore()
    bad, good = report(store), report(store, "other")
    foreign = CheckpointStore(store)
    (schedule,) = Schedules(bad).runs.values()
    foreign.__put__(schedule.key, {"day": "x"}, next=("write",))
    good.submit({"day": "x"}, "t")
    caplog.set_level(logging.WARNING, "milecastle.fleet")

    async def serve() -> str:
        worker = Worker([bad, good], QUICK)
        task = asyncio.create_task(worker.run())
        try:
            return (await good.await_result("t")).status
        finally:
            worker.stop()
            await task

    assert asyncio.run(serve()) == "completed"
    assert "schedule 'report' cannot be looked after" in caplog.text
    (info,) = Schedules(bad).all()
    assert info.status == "held"


@pytest.mark.parametrize("ends", ["asks", "queued"])
def test_run_of_another_graph_is_not_discarded(ends: str) -> None:
    """The question was lost: the other graph's input took the thread over."""
    store = MemoryStore()
    asking, other = report(store, "asking", asks=True), report(store, "other")
    asking.submit({"day": "x"}, "t")
    if ends == "asks":
        work(asking)
    before = store.head(ThreadKey("default", "t"))
    tries: list[Callable[[], object]] = [
        lambda: other.submit({"day": "y"}, "t", if_busy="cancel"),
        lambda: other.submit({"day": "y"}, "t", if_busy="queue"),
        lambda: other.invoke({"day": "y"}, "t", discard=True, take_over=True),
        lambda: other.cancel("t"),
        lambda: other.update_state("t", {"day": "y"}),
        lambda: other.fork("t", 1),
        lambda: other.delete("t", take_over=True),
    ]
    for each in tries:
        with pytest.raises(ResumeRefused, match="it is of the graph 'asking'"):
            each()
    assert store.head(ThreadKey("default", "t")) == before


def test_job_is_not_changed_by_the_app_of_its_graph() -> None:
    """It could be cancelled and written to, as if it were a thread of the graph."""
    from milecastle.fleet.bulk import Bulk

    store = MemoryStore()
    app = report(store)
    app.submit({"day": "x"}, "t", delay=1000)
    job = Bulk(app).submit("cancel", "default", "queued")
    for change in (app.cancel, app.delete):
        with pytest.raises(ResumeRefused, match="bulk@@report"):
            change(job_key("default", job.id))
    work(app)
    assert Bulk(app).info("default", job.id).changed == 1
