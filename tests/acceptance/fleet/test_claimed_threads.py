"""A thread that a worker has is running, before its first step is committed.

It was shown as queued, next ``__start__``, for as long as its first node took.
"""

from __future__ import annotations

import asyncio
from typing import TypedDict

import pytest

from milecastle import END, START, App, Event, Observer, StateGraph, Store, ThreadKey
from milecastle.app.runs.submission import require_shared
from milecastle.fleet.worker import Worker
from milecastle.model.run import Owner
from milecastle.ports.workers import WorkerInfo
from milecastle.views.decoding import decode
from milecastle.views.fleet import workers_document
from milecastle.views.listing import thread_lines
from milecastle.views.showing import read_shown, run_lines, show_document


class State(TypedDict):
    n: int


class Told:
    """Collects what is reported."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def on_event(self, event: Event) -> None:
        self._events.append(event)


def _app(store: Store, *observers: Observer) -> App[State]:
    graph = StateGraph(State, name="slow")

    @graph.node
    def work(state: State) -> State:
        return {"n": state["n"] + 1}

    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    return graph.compile(store=store, observers=observers)


def _beat(store: Store, silent_after: float = 15.0) -> None:
    owner = Owner(host="elsewhere", boot_id="b", pid=1, started="1")
    worker = WorkerInfo(id="w", owner=owner, lanes=(), started_at=1, silent_after=silent_after)
    require_shared(store).beat(worker)


def _claim(app: App[State]) -> None:
    """Take what is due, as a worker does before it runs the first node."""
    _beat(app.store)
    assert require_shared(app.store).claim("w", [app.runner.lane], limit=10)


def _seen(store: Store, key: ThreadKey) -> tuple[str, tuple[str, ...], str, str]:
    """What ``show``, ``ls`` and ``runs`` say."""
    found = read_shown(store, key)
    assert found is not None
    shown = show_document(store, key, found, decode(key, found.chain, None, lambda: None))
    (listed,) = thread_lines(store, key.tenant)
    (run,) = run_lines(store, store.runs(key))
    assert shown.run is not None
    assert shown.run.status == run.status
    return shown.status, shown.checkpoint.next, listed.status, run.status


def test_a_claimed_thread_is_running_in_every_view(store: Store) -> None:
    app = _app(store)
    key = app.submit({"n": 1}, "t").thread
    assert app.state("t").status == "queued"
    assert _seen(store, key) == ("queued", ("__start__",), "queued", "queued")
    _claim(app)
    now = app.state("t")
    assert (now.status, now.next) == ("running", ("work",))
    assert _seen(store, key) == ("running", ("work",), "running", "running")
    assert workers_document(require_shared(store)).threads[0].nodes == ("work",)


def test_a_claimed_thread_is_listed_as_running_and_not_as_queued(store: Store) -> None:
    app = _app(store)
    app.submit_many({name: {"n": 1} for name in ("a", "b", "c")})
    _claim(app)
    app.submit({"n": 1}, "d")
    app.invoke({"n": 1}, "e")
    assert [info.key.thread for info in app.threads(status="running")] == ["a", "b", "c"]
    assert [info.key.thread for info in app.threads(status="running", limit=1, after="a")] == ["b"]
    assert [info.key.thread for info in app.threads(status="queued")] == ["d"]
    for status, names in (("running", ["a", "b", "c"]), ("queued", ["d"])):
        assert [line.thread for line in thread_lines(store, "default", status=status)] == names
    assert {info.key.thread: info.status for info in app.threads()} == {
        **dict.fromkeys("abc", "running"),
        "d": "queued",
        "e": "completed",
    }


def test_a_thread_given_back_is_queued_again(store: Store) -> None:
    app = _app(store)
    key = app.submit({"n": 1}, "t").thread
    _claim(app)
    require_shared(store).give_back("w", key)
    assert app.state("t").status == "queued"
    assert _seen(store, key) == ("queued", ("__start__",), "queued", "queued")


def test_a_start_that_is_decided_by_a_router_names_no_node_before(store: Store) -> None:
    graph = StateGraph(State, name="slow")
    graph.add_node("work", lambda state: state)
    graph.add_conditional_edges(START, lambda state: "work", ["work"])
    graph.add_edge("work", END)
    app = graph.compile(store=store)
    app.submit({"n": 1}, "t")
    _claim(app)
    now = app.state("t")
    assert (now.status, now.next) == ("running", ("__start__",))


def test_the_start_is_reported_by_the_worker_and_not_on_submit(store: Store) -> None:
    """Progress said "started" when a run was submitted, and again when it started."""
    events: list[Event] = []
    app = _app(store, Told(events))
    app.submit({"n": 1}, "t")
    assert [event.type for event in events] == ["state_created", "checkpoint_save"]
    asyncio.run(Worker([app]).run_until_idle())
    assert [event.type for event in events].count("graph_start") == 1


def test_a_worker_logs_a_line_for_each_ended_run(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker logged nothing on success."""
    app = _app(store)
    handle = app.submit({"n": 1}, "t")
    with caplog.at_level("INFO", logger="milecastle.fleet"):
        asyncio.run(Worker([app]).run_until_idle())
    said = [text for text in caplog.messages if handle.run_id in text]
    assert len(said) == 1
    assert said[0].startswith(f"thread 't': run {handle.run_id} is completed at step 1, after 0.")


def test_worker_until_idle_takes_over_from_silent_workers(store: Store) -> None:
    """It ended before it looked for them: called by cron alone, a killed worker's run stood still.

    Tried: without that look, the run has not ended.
    """
    app = _app(store)
    app.submit({"n": 1}, "t")
    _claim(app)
    _beat(store, silent_after=0.0)
    asyncio.run(Worker([app]).run_until_idle())
    assert app.state("t").status == "completed"
