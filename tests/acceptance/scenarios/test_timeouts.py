"""X6: timeouts per node, of the whole attempt and of idleness, for sync and async nodes."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    DefinitionError,
    ExecutionOptions,
    InvalidRequest,
    Retry,
    StateGraph,
    Store,
    Timeout,
    append,
)
from milecastle.errors import NodeTimeout
from milecastle.stores.memory import MemoryStore
from tests.acceptance.scenarios.calling import Caller, Calls, of_state, rows


class Work(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


def one(node: Any, store: Store | None, **policy: Any) -> App[Work]:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", node, **policy)
    graph.add_edges(START, "work", END)
    return graph.compile(store=store)


class Stuck:
    """Nodes of both colours that do not end before they are released."""

    def __init__(self, times: int = 1) -> None:
        self.gate = threading.Event()
        self.left = times
        self.calls = Calls()

    def sync(self, state: Any, ctx: Context) -> dict[str, Any]:
        if self.left:
            self.left -= 1
            self.gate.wait(60)
            try:
                ctx.once("late", lambda: self.calls("did"))
                self.calls("recorded")
            except InvalidRequest:
                self.calls("refused")
                raise
        return {"log": [f"attempt {ctx.attempt}"]}

    async def on_loop(self, state: Any, ctx: Context) -> dict[str, Any]:
        if self.left:
            self.left -= 1
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.calls("cancelled")
                raise
        return {"log": [f"attempt {ctx.attempt}"]}


@pytest.mark.requirement("X6", api="Timeout")
def test_an_async_node_that_takes_too_long_is_cancelled(call: Caller, store: Store) -> None:
    stuck = Stuck()
    error = call.fails(one(stuck.on_loop, store, timeout=0.03), {})
    assert isinstance(error.__cause__, NodeTimeout)
    assert stuck.calls.made == ["cancelled"]


@pytest.mark.requirement("X6", api="Timeout")
def test_a_sync_node_that_takes_too_long_is_left_to_itself(call: Caller, store: Store) -> None:
    stuck = Stuck()
    app = one(stuck.sync, store, timeout=0.03)
    before = time.monotonic()
    error = call.fails(app, {})
    assert isinstance(error.__cause__, NodeTimeout)
    assert time.monotonic() - before < 30
    assert app.state("t").status == "failed"
    head = list(app.history("t"))
    stuck.gate.set()
    wait_for(stuck.calls, "refused")
    assert not any("?" in row for row in rows(store))
    assert list(app.history("t")) == head


def wait_for(calls: Calls, name: str) -> None:
    end = time.monotonic() + 60
    while not calls.count(name):
        assert time.monotonic() < end, f"{name} did not happen, but {calls.made}"
        time.sleep(0.005)


@pytest.mark.parametrize("verb", ["emit", "heartbeat"])
def test_what_a_sync_node_still_says_after_its_timeout_is_refused(call: Caller, verb: str) -> None:
    """Fails if a late value is emitted, or a late sign of life is taken for one of the run."""
    gate, calls = threading.Event(), Calls()

    def late(state: Any, ctx: Context) -> None:
        gate.wait(60)
        try:
            ctx.emit("late") if verb == "emit" else ctx.heartbeat()
        except InvalidRequest:
            calls("refused")
        calls("over")

    call.fails(one(late, MemoryStore(), timeout=0.03), {})
    gate.set()
    wait_for(calls, "over")
    assert calls.made == ["refused", "over"]


def test_what_an_async_node_still_says_after_its_timeout_is_refused(call: Caller) -> None:
    """Fails if a value is emitted by a node that was cancelled and goes on."""
    calls = Calls()

    async def late(state: Any, ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            try:
                await ctx.aemit("late")
            except InvalidRequest:
                calls("refused")
            calls("over")
            raise

    call.fails(one(late, MemoryStore(), timeout=0.03), {})
    wait_for(calls, "over")
    assert calls.made == ["refused", "over"]


@pytest.mark.parametrize("colour", ["sync", "on_loop"])
def test_an_attempt_that_took_too_long_is_followed_by_another(
    call: Caller, store: Store, colour: str
) -> None:
    stuck = Stuck()
    retry = Retry(attempts=20, delay=0, on=(KeyError,))
    app = one(getattr(stuck, colour), store, timeout=Timeout(run=0.05), retry=retry)
    assert call.invoke(app, {})["log"] != ["attempt 1"]
    stuck.gate.set()


def test_a_stuck_node_takes_no_room_from_the_next_attempt(call: Caller) -> None:
    stuck = Stuck()
    app = one(stuck.sync, MemoryStore(), timeout=0.05, retry=Retry(attempts=20, delay=0))
    options = ExecutionOptions(max_parallel=1)
    assert call.invoke(app, {}, options=options)["log"] != ["attempt 1"]
    stuck.gate.set()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync nodes", "async nodes"])
def test_a_node_that_gives_signs_of_life_is_not_idle(call: Caller, is_async: bool) -> None:
    """Longer than its idle time in all, and never silent for as long, on a slow machine either."""

    def busy(state: Any, ctx: Context) -> dict[str, Any]:
        for _ in range(30):
            time.sleep(0.05)
            ctx.heartbeat()
        return {"log": ["done"]}

    async def abusy(state: Any, ctx: Context) -> dict[str, Any]:
        for _ in range(30):
            await asyncio.sleep(0.05)
            ctx.heartbeat()
        return {"log": ["done"]}

    app = one(abusy if is_async else busy, MemoryStore(), timeout=Timeout(idle=1.2))
    assert call.invoke(app, {})["log"] == ["done"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync nodes", "async nodes"])
@pytest.mark.requirement("X6", api="Timeout")
def test_a_node_that_gives_no_more_signs_of_life_is_out_of_time(
    call: Caller, store: Store, is_async: bool
) -> None:
    gate = threading.Event()

    def falls_silent(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.heartbeat()
        gate.wait(60)
        return {"log": ["done"]}

    async def afalls_silent(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.heartbeat()
        await asyncio.sleep(60)
        return {"log": ["done"]}

    app = one(afalls_silent if is_async else falls_silent, store, timeout=Timeout(idle=0.03))
    error = call.fails(app, {})
    assert isinstance(error.__cause__, NodeTimeout)
    gate.set()


def test_signs_of_life_do_not_lengthen_the_whole_attempt(call: Caller) -> None:
    stop = threading.Event()

    def busy(state: Any, ctx: Context) -> dict[str, Any]:
        while not stop.wait(0.01):
            ctx.heartbeat()
        return {"log": ["done"]}

    app = one(busy, MemoryStore(), timeout=Timeout(run=2.25, idle=1.75))
    error = call.fails(app, {})
    stop.set()
    assert isinstance(error.__cause__, NodeTimeout)
    assert "2.25" in str(error.__cause__)


def test_a_node_that_is_in_time_is_not_disturbed(call: Caller, store: Store) -> None:
    app = one(of_state(lambda state: {"log": ["done"]}), store, timeout=60)
    assert call.invoke(app, {})["log"] == ["done"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_results_of_siblings_of_a_node_that_timed_out_are_stored(
    call: Caller, store: Store
) -> None:
    calls, stuck = Calls(), Stuck()

    def other(state: Any) -> dict[str, Any]:
        calls("other")
        return {"log": ["other"]}

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("stuck", stuck.sync, timeout=1.0)
    graph.add_node("other", other)
    for name in ("stuck", "other"):
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store=store)
    call.fails(app, {})
    stuck.gate.set()
    wait_for(stuck.calls, "refused")
    result = call.resume(app)
    assert len(result["log"]) == 2
    assert calls.count("other") == 1


def test_items_of_a_fan_out_wait_for_their_turn_without_losing_time(call: Caller) -> None:
    def each(state: Any) -> dict[str, Any]:
        time.sleep(0.1)
        return {"log": [str(state["item"])]}

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("each", each, timeout=2.0, limit=2)
    graph.map(START, "each", over=lambda state: range(60), item="item")
    graph.add_edge("each", END)
    app = graph.compile(store=MemoryStore())
    assert len(call.invoke(app, {})["log"]) == 60


def test_tasks_of_subgraphs_wait_for_their_turn_without_losing_time(call: Caller) -> None:
    def each(state: Any) -> dict[str, Any]:
        time.sleep(0.1)
        return {"log": ["x"]}

    inner: StateGraph[Work] = StateGraph(Work)
    inner.add_node("each", each, timeout=2.0)
    inner.map(START, "each", over=lambda state: range(12), item="item")
    inner.add_edge("each", END)
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("child", inner.compile())
    graph.map(START, "child", over=lambda state: range(2), item="item")
    graph.add_edge("child", END)
    app = graph.compile(store=MemoryStore())
    result = call.invoke(app, {}, options=ExecutionOptions(max_parallel=1))
    assert len(result["log"]) == 24


@pytest.mark.parametrize("wrong", [{}, {"run": 0}, {"idle": -1}])
def test_a_timeout_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Timeout(**wrong)


def test_a_timeout_of_a_subgraph_is_refused_when_compiling() -> None:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("child", one(of_state(lambda state: None), None), timeout=1)
    graph.add_edges(START, "child", END)
    with pytest.raises(DefinitionError, match="timeout"):
        graph.compile()
