"""``why``: nothing explained a thread that did not run."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import msgspec.structs
import pytest

from milecastle import END, START, App, Context, Retry, StateGraph, Store, ThreadKey, interrupt
from milecastle.app.runs.cancelling import hold_lost
from milecastle.app.runs.ownership import current_owner
from milecastle.app.runs.submission import require_shared
from milecastle.errors import ExecutionError, InvalidRequest
from milecastle.fleet.prometheus import bucket_families, render
from milecastle.fleet.worker import Worker
from milecastle.model.run import Owner
from milecastle.ports.buckets import Bucket, bucket_levels, require_buckets
from milecastle.ports.limits import Limit
from milecastle.ports.store import Batch
from milecastle.ports.workers import WorkerInfo
from milecastle.testing.entries import Writer, a_key
from milecastle.views.fleet import queue_document
from milecastle.views.reasons import fleet_troubles, why_document


class State(TypedDict):
    n: int


def _work(state: State) -> dict[str, Any]:
    if state["n"] == 13:
        raise ValueError("no")
    if state["n"] == 42:
        interrupt("sure?")
    return {"n": state["n"] + 1}


@pytest.fixture
def app(store: Store) -> App[State]:
    graph = StateGraph(State, name="work")
    graph.add_node("work", _work)
    graph.add_edges(START, "work", END)
    return graph.compile(store=store)


def _beat(app: App[State], lane: str | None = None, **changed: Any) -> None:
    owner = Owner(host="elsewhere", boot_id="b", pid=1, started="1")
    lanes = (lane or app.runner.lane,)
    given: dict[str, Any] = {"capacity": 10, "owner": owner, **changed}
    require_shared(app.store).beat(WorkerInfo(id="w", lanes=lanes, started_at=1, **given))


def _why(app: App[State], thread: str = "t") -> dict[str, str]:
    found = why_document(app.store, ThreadKey("default", thread))
    return {line.code: line.text for line in found.reasons}


def test_a_thread_that_waits_for_its_time(app: App[State]) -> None:
    app.submit({"n": 1}, "t", delay=3600)
    assert "it is not due until 2" in _why(app)["not-due"]


def test_the_reasons_are_one_sentence(app: App[State]) -> None:
    app.invoke({"n": 42}, "t")
    found = why_document(app.store, ThreadKey("default", "t"))
    assert found.sentence == "It waits for an answer."


def test_a_thread_without_a_worker_or_with_one_of_another_version(app: App[State]) -> None:
    app.submit({"n": 1}, "t")
    assert _why(app) == {"no-worker": "no worker serves graph 'work'"}
    _beat(app, lane="work@other")
    assert [*_why(app)] == ["no-version"]
    (trouble,) = fleet_troubles(require_shared(app.store))
    assert "1 due of graph 'work', tenant 'default': no worker serves version" in trouble.text
    _beat(app, draining=True)
    assert _why(app) == {"no-worker": "every worker of its graph is about to stop"}
    _beat(app)
    assert "a worker is about to claim it" in _why(app)["due"]
    assert fleet_troubles(require_shared(app.store)) == []


def test_a_thread_that_waits_for_a_message(store: Store) -> None:
    """Nothing said what a thread waits for that receives."""

    def pay(state: State, ctx: Context) -> dict[str, Any]:
        return {"n": ctx.receive("paid", int, timeout=3600, default=0)}

    graph = StateGraph(State, name="work")
    graph.add_node("pay", pay)
    graph.add_edges(START, "pay", END)
    app = graph.compile(store=store)
    app.submit({"n": 1}, "t")
    asyncio.run(Worker([app]).run_until_idle())
    assert _why(app)["receives"] == "it waits for a message of topic 'paid'"
    app.send("t", 5, "paid")
    assert [*_why(app)] == ["receives", "no-worker"]


def test_a_thread_that_waits_for_its_turn_at_a_bucket(store: Store) -> None:
    """Nothing said what a run waits for that takes from a bucket."""

    def pay(state: State, ctx: Context) -> dict[str, Any]:
        ctx.take("gpt", 2)
        return {}

    require_buckets(store.buckets).put(Bucket(name="gpt", rate=1, period=30.0, burst=2))
    graph = StateGraph(State, name="work")
    graph.add_node("pay", pay)
    graph.add_edges(START, "pay", END)
    app = graph.compile(store=store)
    for thread in ("first", "t"):
        app.submit({"n": 1}, thread)
        asyncio.run(Worker([app]).run_until_idle())
    assert _why(app)["turn"].startswith("it waits for its turn at bucket 'gpt', in ")
    document = queue_document(require_shared(store))
    assert [(line.name, line.left, line.waiting) for line in document.buckets] == [("gpt", 0, 1)]
    shown = render(bucket_families(bucket_levels(store), require_shared(store).now()))
    assert 'milecastle_bucket_waiting{bucket="gpt",tenant=""} 1.0' in shown


def test_a_thread_that_waits_for_a_child(store: Store, app: App[State]) -> None:
    """Was broken: it told to send a message of a topic that is reserved."""

    def join(state: State, ctx: Context) -> dict[str, Any]:
        return {"n": ctx.join(ctx.spawn(app, {"n": 1}, "child")).state["n"]}

    graph = StateGraph(State, name="parent")
    graph.add_node("join", join)
    graph.add_edges(START, "join", END)
    parent = graph.compile(store=store)
    parent.submit({"n": 1}, "t")
    asyncio.run(Worker([parent]).run_until_idle())
    assert _why(parent) == {"joins": "it waits for the end of child 'child'"}


def test_a_thread_that_is_paused_or_at_a_limit(app: App[State]) -> None:
    store = require_shared(app.store)
    _beat(app)
    app.submit({"n": 1}, "first")
    assert store.claim("w", [app.runner.lane], limit=1)
    app.submit({"n": 1}, "t")
    store.set_limit(Limit(graph="work", concurrency=1))
    assert _why(app) == {"limit": "graph 'work', tenant * is at its limit of 1 running threads"}
    store.set_limit(Limit(tenant="default", paused=True))
    assert _why(app)["paused"] == "graph *, tenant 'default' is paused"
    assert [one.code for one in fleet_troubles(store)] == ["paused"]


def test_limits_of_others_and_those_with_room_are_no_reason(app: App[State]) -> None:
    """Fails if a limit is named that does not hold the thread: it would be raised in vain."""
    store = require_shared(app.store)
    _beat(app)
    app.submit({"n": 1}, "t")
    store.set_limit(Limit(graph="another", paused=True))
    store.set_limit(Limit(tenant="another", paused=True))
    store.set_limit(Limit(graph="work", concurrency=5))
    assert [*_why(app)] == ["due"]
    assert fleet_troubles(store) == []
    store.set_limit(Limit(rate=2, period=60))
    assert _why(app) == {"limit": "graph *, tenant * may start 2 threads in 60 s"}


def test_silent_workers_and_threads_due_for_long_are_trouble(
    app: App[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a lane is trouble whose threads are due later, or one with a worker never is."""
    store = require_shared(app.store)
    app.submit({"n": 1}, "later", delay=3600)
    assert fleet_troubles(store) == []
    _beat(app, silent_after=0.0)
    assert [one.text[:26] for one in fleet_troubles(store)] == ["worker w has been silent f"]
    _beat(app)
    monkeypatch.setattr("milecastle.views.reasons._LATE", 0.0)
    app.submit({"n": 1}, "t")
    (trouble,) = fleet_troubles(store)
    assert "1 due of graph 'work', tenant 'default': the oldest has waited" in trouble.text


def test_a_thread_whose_workers_are_full(app: App[State]) -> None:
    _beat(app, capacity=1)
    app.submit({"n": 1}, "first")
    assert require_shared(app.store).claim("w", [app.runner.lane], limit=1)
    app.submit({"n": 1}, "t")
    assert "every worker of its graph is full" in _why(app)["busy"]


def test_a_thread_that_runs_or_whose_worker_is_silent(app: App[State]) -> None:
    store = require_shared(app.store)
    _beat(app)
    app.submit({"n": 1}, "t")
    store.claim("w", [app.runner.lane], limit=1)
    assert _why(app) == {"running": "worker w runs it, at work"}
    app.submit({"n": 2}, "t", if_busy="queue")
    assert "1 input waits behind run" in _why(app)["behind"]
    app.submit({"n": 1}, "other")
    store.claim("ghost", [app.runner.lane], limit=1)
    assert "its worker ghost has been silent" in _why(app, "other")["silent"]


def test_a_thread_whose_worker_is_gone_and_not_silent_yet(app: App[State]) -> None:
    """It was said to run until its worker had been silent for 15 seconds."""
    gone = msgspec.structs.replace(current_owner(), pid=2**22 - 1, started="1")
    _beat(app, owner=gone)
    app.submit({"n": 1}, "t")
    store = require_shared(app.store)
    (info,) = store.claim("w", [app.runner.lane], limit=1)
    assert [*_why(app)] == ["running"]  # it has not begun: its record names no process
    (run,) = store.runs(ThreadKey("default", "t"))
    begun = msgspec.structs.replace(run, status="running", owner=gone)
    row = msgspec.structs.replace(info, status="running")
    store.commit(Batch(key=info.key, head=1, runs=(begun,), thread=row))
    assert "its worker w does not run it: process 4194303" in _why(app)["lost"]


def test_a_thread_that_asks_failed_is_held_or_has_ended(app: App[State]) -> None:
    app.invoke({"n": 42}, "t")
    assert _why(app) == {"asks": "it waits for an answer"}
    with pytest.raises(ExecutionError):
        app.invoke({"n": 13}, "failed")
    assert "its run failed with ValueError at node 'work'" in _why(app, "failed")["failed"]
    app.invoke({"n": 1}, "ended")
    assert [*_why(app, "ended")] == ["ended"]
    app.submit({"n": 1}, "held")
    threads = app.runner.threads
    info = app.store.thread(ThreadKey("default", "held"))
    assert threads is not None
    assert info is not None
    hold_lost(threads.store, threads.codec, threads.clock, info, 5)
    assert "held after 5 losses" in _why(app, "held")["held"]


def test_a_thread_that_its_caller_runs_or_has_left(store: Store) -> None:
    """Fails if a crashed caller's run is said to run: nobody would resume it."""
    apps: list[App[State]] = []
    found: list[dict[str, str]] = []

    def look(state: State) -> dict[str, Any]:
        found.append(_why(apps[0]))
        return {}

    graph = StateGraph(State, name="work")
    graph.add_node("look", look)
    graph.add_edges(START, "look", END)
    apps.append(graph.compile(store=store))
    apps[0].invoke({"n": 1}, "t")
    assert found == [{"running": "it runs in the process that called it"}]
    Writer(a_key("left", tenant="default")).begin(store)
    assert "its process does not run it" in _why(apps[0], "left")["lost"]


def test_a_thread_that_was_cancelled_even_if_an_input_waits(app: App[State]) -> None:
    """Fails if the input behind a cancelled run is not mentioned, or is said of a run to come."""
    for n in (1, 2):
        app.submit({"n": n}, "t", if_busy="queue")
    app.cancel("t")
    assert _why(app)["inputs"] == "its last run is cancelled, and 1 input waits"
    assert "behind" not in _why(app)
    app.cancel("t")
    assert [*_why(app)] == ["cancelled"]


def test_a_failed_thread_that_workers_will_retry(store: Store) -> None:
    """Fails if it advises a retry that comes by itself."""
    graph = StateGraph(State, name="work")
    graph.add_node("work", _work)
    graph.add_edges(START, "work", END)
    app = graph.compile(store=store, retry_runs=Retry(attempts=2, delay=3600))
    app.submit({"n": 13}, "t")
    asyncio.run(Worker([app]).run_until_idle())
    assert _why(app)["failed"].endswith("with ValueError at node 'work', and is to be retried")


def test_no_thread_is_an_error(app: App[State]) -> None:
    with pytest.raises(InvalidRequest, match="there is no thread 'nope'"):
        why_document(app.store, ThreadKey("default", "nope"))
