"""Timelines of threads: lanes, waits, attempts and fan-outs, from real logs."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    ExecutionOptions,
    Retry,
    StateGraph,
    ThreadKey,
    append,
    flow,
    interrupt,
    step,
)
from milecastle.errors import ExecutionError
from milecastle.fleet.worker import Worker
from milecastle.views.fan_outs import failed_items, fan_out_document
from milecastle.views.step_times import read_times
from milecastle.views.timeline import BY_HAND, TimelineData, TimelineDocument, timeline_document

KEY = ThreadKey("default", "t")


class State(TypedDict, total=False):
    items: list[int]
    item: int
    n: int
    out: Annotated[list[int], append]


class Tries:
    """Fails the first attempts."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self, state: State) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise ConnectionError("no")
        return {"n": 1}


def _does_nothing(state: State) -> Any:
    return {}


def _asks(state: State) -> Any:
    return {"out": [interrupt("sure?")]}


def _naps(state: State, ctx: Context) -> Any:
    ctx.sleep(3600)
    return {}


def _course(app: App[Any], **given: Any) -> TimelineData:
    store = app.store
    entries = [*reversed([*store.history(KEY, limit=220)])]
    runs = {run.run_id: run for run in store.runs(KEY)}
    failures = {one: store.failure(KEY, one) for one in runs}
    return TimelineData(
        entries=entries,
        runs=runs,
        times=read_times(store, KEY, lambda: None, entries[0].seq, entries[-1].seq),
        now=time.time_ns() // 1000,
        info=store.thread(KEY),
        failures={one: failure for one, failure in failures.items() if failure},
        **given,
    )


def _timeline(app: App[Any], selected: int = 1, **given: Any) -> TimelineDocument:
    return timeline_document(_course(app), selected=selected, **given)


def _kinds(found: TimelineDocument) -> dict[str, list[str]]:
    return {lane.node: [bar.kind for bar in lane.bars] for lane in found.lanes}


@pytest.fixture
def order() -> App[Any]:
    graph = StateGraph(State, name="order")
    graph.add_node("check", _does_nothing)
    graph.add_node("price", Tries(2), retry=Retry(attempts=3, delay=0.01))
    graph.add_node("risk", _does_nothing)
    graph.add_node("reserve", _does_nothing)
    graph.add_node("approve", _asks)
    graph.add_node("ship", _does_nothing)
    graph.add_edges(START, "check", "price")
    graph.add_edges("check", "risk")
    graph.add_node("gather", _does_nothing)
    graph.add_edges("price", "gather")
    graph.add_edges("risk", "gather")
    graph.map("gather", "reserve", over="items", item="item")
    graph.add_edges("reserve", "approve", "ship", END)
    return graph.compile(store="memory://")


def test_lanes_have_attempts_pauses_fan_outs_and_waits(order: App[Any]) -> None:
    order.invoke({"items": [*range(8)]}, thread="t")
    found = _timeline(order, nodes=["check", "ship"])
    assert _kinds(found) == {
        "check": ["ran"],
        "price": ["failed", "pause", "failed", "pause", "ran"],
        "risk": ["ran"],
        "gather": ["ran"],
        "reserve": ["items"],
        "approve": ["ran", "answer"],
        "ship": [],
    }
    lanes = {lane.node: lane for lane in found.lanes}
    assert lanes["price"].tries == 3
    assert lanes["price"].bars[0].error == "ConnectionError"
    assert lanes["reserve"].items == lanes["reserve"].bars[0].items == 8
    assert len(lanes["reserve"].bars[0].at_once) == 60
    assert {bar.seq for bar in lanes["price"].bars} == {3}


def test_bars_are_in_the_width_and_wide_enough_to_be_seen(order: App[Any]) -> None:
    order.invoke({"items": [1]}, thread="t")
    order.resume("t", 1)
    for axis in ("work", "clock"):
        found = _timeline(order, axis=axis)
        for lane in found.lanes:
            for bar in lane.bars:
                assert bar.width >= 0.7
                assert 0 <= bar.x <= bar.x + bar.width <= 100.01


def test_an_answered_question_is_a_wait_between_two_checkpoints(order: App[Any]) -> None:
    order.invoke({"items": [1]}, thread="t")
    time.sleep(0.02)
    order.resume("t", 1)
    found = _timeline(order)
    approve = next(lane for lane in found.lanes if lane.node == "approve")
    assert [bar.kind for bar in approve.bars] == ["ran", "answer", "ran"]
    assert approve.bars[1].stop - approve.bars[1].start >= 20_000
    assert _kinds(found)["ship"] == ["ran"]


def test_a_failed_run_is_a_failed_bar_until_its_end() -> None:
    graph = StateGraph(State, name="g")
    graph.add_node("work", Tries(1))
    graph.add_edges(START, "work", END)
    app = graph.compile(store="memory://")
    with pytest.raises(ExecutionError):
        app.invoke({}, thread="t")
    (bar,) = _timeline(app).lanes[0].bars
    assert (bar.kind, bar.error, bar.attempt) == ("failed", "ConnectionError", 1)
    time.sleep(0.01)
    app.resume("t")
    first, second = _timeline(app).lanes[0].bars
    assert (first.kind, second.kind) == ("failed", "ran")
    assert second.start - first.stop >= 10_000  # nothing ran between the two runs


def test_a_queued_run_waits_for_a_worker_before_its_first_node() -> None:
    """Fails if the input's entry is asked for nodes: it says only where the graph starts."""
    graph = StateGraph(State, name="g")
    graph.add_node("naps", _naps)
    graph.add_edges(START, "naps", END)
    app = graph.compile(store="memory://")
    app.submit({}, "t")
    queued = timeline_document(_course(app, working=("naps",)), selected=1)
    assert _kinds(queued) == {"naps": ["worker"]}
    asyncio.run(Worker([app]).run_until_idle())
    assert _kinds(_timeline(app))["naps"][-2:] == ["ran", "sleep"]


def test_a_run_in_progress_has_a_bar_until_now() -> None:
    seen: list[dict[str, list[str]]] = []
    graph = StateGraph(State, name="g")
    graph.add_node("first", _does_nothing)
    apps: list[App[State]] = []

    def second(state: State) -> None:
        seen.append(_kinds(_timeline(apps[0])))

    graph.add_node("second", second)
    graph.add_edges(START, "first", "second", END)
    apps.append(graph.compile(store="memory://"))
    apps[0].invoke({}, thread="t")
    assert seen == [{"first": ["ran"], "second": ["running"]}]


def test_checkpoints_by_hand_and_branches_that_were_left(order: App[Any]) -> None:
    order.invoke({"items": [1]}, thread="t")
    order.fork("t", 2)
    order.update_state("t", {"n": 5})
    course = _course(order, path={1, 2, 6, 7})
    found = timeline_document(course, selected=7)
    lanes = {lane.node: lane for lane in found.lanes}
    assert [bar.kind for bar in lanes[BY_HAND].bars] == ["hand", "hand"]
    assert not any(bar.is_left for bar in lanes["check"].bars)
    assert all(bar.is_left for bar in lanes["price"].bars)


def test_a_flow_has_a_bar_for_each_call() -> None:
    @step
    def one(n: int) -> int:
        time.sleep(0.01)
        return n + 1

    @flow
    def adds(n: int) -> int:
        return one(one(n))

    app = adds.compile(store="memory://")
    app.invoke(adds.input(1), thread="t")
    (lane,) = _timeline(app).lanes
    assert [bar.note for bar in lane.bars] == ["1 one", "2 one", ""]


def test_a_long_loop_has_few_bars() -> None:
    """Fails if bars too narrow to be seen are not merged: 200 of them."""
    graph = StateGraph(State, name="g")
    for name in ("a", "b"):
        graph.add_node(name, _does_nothing)
    graph.add_edges(START, "a", "b")
    turns = iter(range(150))
    graph.add_conditional_edges(
        "b", lambda state: "a" if next(turns, None) is not None else END, ["a", END]
    )
    app = graph.compile(store="memory://")
    options = ExecutionOptions(max_steps=400, cycle_detection=False)
    app.invoke({}, thread="t", options=options)
    found = _timeline(app)
    assert sum(len(lane.bars) for lane in found.lanes) <= 150
    assert sum(bar.merged for lane in found.lanes for bar in lane.bars) > 200


def test_a_wide_fan_out_has_a_bounded_detail() -> None:
    graph = StateGraph(State, name="g")
    graph.add_node("work", _does_nothing)
    graph.map(START, "work", over="items", item="item")
    graph.add_edges("work", END)
    app = graph.compile(store="memory://")
    app.invoke({"items": [*range(300)]}, thread="t")
    course = _course(app)
    (lane,) = timeline_document(course, selected=2).lanes
    assert (lane.items, len(lane.bars)) == (300, 1)
    found = fan_out_document(course.entries[1], course.times[2], "work")
    assert found is not None
    assert (found.ran, found.failed, found.is_cut) == (300, 0, True)
    assert sum(one.count for one in found.durations) == 300
    assert len(found.items) == 20
    assert found.items[0].took == max(one.took or 0 for one in found.items)
    assert fan_out_document(course.entries[1], course.times[2], "other") is None


def test_items_that_failed_a_run_are_listed_from_its_failure() -> None:
    def fails(state: State) -> Any:
        if state.get("item", 0) % 2:
            raise ValueError("odd")
        return {}

    graph = StateGraph(State, name="g")
    graph.add_node("work", fails)
    graph.map(START, "work", over="items", item="item")
    graph.add_edges("work", END)
    app = graph.compile(store="memory://")
    with pytest.raises(ExecutionError):
        app.invoke({"items": [*range(6)]}, thread="t")
    failure = app.store.failure(KEY, app.store.runs(KEY)[0].run_id)
    assert failure is not None
    listed = failed_items(failure, "work")
    assert [(one.index, one.error, one.message) for one in listed] == [
        (1, "ValueError", "odd"),
        (3, "ValueError", "odd"),
        (5, "ValueError", "odd"),
    ]


def test_a_few_items_are_all_listed_with_the_slowest_first() -> None:
    def sleeps(state: State) -> Any:
        time.sleep(0.03 if state.get("item") == 2 else 0)
        return {}

    graph = StateGraph(State, name="g")
    graph.add_node("work", sleeps)
    graph.map(START, "work", over="items", item="item")
    graph.add_edges("work", END)
    app = graph.compile(store="memory://")
    app.invoke({"items": [*range(6)]}, thread="t")
    course = _course(app)
    found = fan_out_document(course.entries[1], course.times[2], "work")
    assert found is not None
    assert (found.items[0].task, found.is_cut, len(found.items)) == ("work#2", False, 6)
    assert sum(one.count for one in found.durations) == 6
