"""With ``CheckpointConfig(interval=n)`` what was recorded is not repeated after a run stopped.

A step that leaves rows begins at a saved entry. Before, a failure saved the step before it as a
new entry, under which the rows and the key of the node that had failed were not found again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Context,
    ExecutionError,
    Retry,
    StateGraph,
    Store,
    append,
    current,
    interrupt,
)
from milecastle.testing import crash_everywhere
from tests.acceptance.scenarios.calling import Caller

INTERVALS = pytest.mark.parametrize("interval", [1, 2, 3])

pytestmark = pytest.mark.requirement("C3", api="CheckpointConfig.interval")


class Work(TypedDict, total=False):
    xs: list[int]
    x: int
    log: Annotated[list[str], append]


class Mailing:
    """A node that sends a mail, and the first time stops the run."""

    def __init__(self, stop: Callable[[], Any], *, declared: bool = True) -> None:
        self.sent: list[str] = []
        self.keys: list[str] = []
        self._stop: Callable[[], Any] | None = stop
        self.node: Any = self._with_context if declared else self._with_state

    def _with_context(self, state: Work, ctx: Context) -> dict[str, Any]:
        self.keys.append(ctx.idempotency_key)
        ctx.once("mail", self.sent.append, "mail")
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        return {"log": ["mailed"]}

    def _with_state(self, state: Work) -> dict[str, Any]:
        return self._with_context(state, current())


def after_plain_step(node: Any, store: Store, interval: int, **policy: Any) -> App[Any]:
    """The node between two plain ones."""
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("first", lambda state: {"log": ["first"]})
    graph.add_node("work", node, **policy)
    graph.add_node("last", lambda state: {"log": ["last"]})
    graph.add_edges(START, "first", "work", "last", END)
    return graph.compile(checkpoint=CheckpointConfig(store=store, interval=interval))


def fail() -> None:
    raise ValueError("on purpose")


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def emit() -> None:
    current().emit("hello")


def ask() -> None:
    interrupt("go on?")


@INTERVALS
@pytest.mark.parametrize("declared", [True, False], ids=["ctx", "current"])
@pytest.mark.parametrize("stop", [fail, press_ctrl_c])
def test_failure_and_ctrl_c_repeat_no_recorded_call(
    call: Caller, store: Store, interval: int, stop: Callable[[], Any], declared: bool
) -> None:
    """The mail was sent twice, with two keys."""
    mailing = Mailing(stop, declared=declared)
    app = after_plain_step(mailing.node, store, interval)
    with pytest.raises((ExecutionError, KeyboardInterrupt)):
        call.invoke(app, {})
    assert call.resume(app)["log"] == ["first", "mailed", "last"]
    assert (mailing.sent, len(mailing.keys), len(set(mailing.keys))) == (["mail"], 2, 1)


@INTERVALS
def test_closed_stream_repeats_no_recorded_call(call: Caller, store: Store, interval: int) -> None:
    """The mail was sent twice, with two keys."""
    mailing = Mailing(emit)
    app = after_plain_step(mailing.node, store, interval)
    call.stream(app, {}, mode="events", until=lambda event: event.type == "emit")
    assert call.resume(app)["log"] == ["first", "mailed", "last"]
    assert (mailing.sent, len(set(mailing.keys))) == (["mail"], 1)


@INTERVALS
@pytest.mark.parametrize("declared", [True, False], ids=["ctx", "current"])
def test_question_repeats_no_recorded_call(
    call: Caller, store: Store, interval: int, declared: bool
) -> None:
    mailing = Mailing(ask, declared=declared)
    app = after_plain_step(mailing.node, store, interval)
    call.invoke(app, {})
    assert call.resume(app, answer="yes")["log"] == ["first", "mailed", "last"]
    assert (mailing.sent, len(set(mailing.keys))) == (["mail"], 1)


@INTERVALS
def test_attempts_of_a_step_are_counted_from_one(call: Caller, store: Store, interval: int) -> None:
    """The attempts of an older step were counted to a step that began with a question."""
    attempts: list[tuple[str, int]] = []
    broken = [True]

    def first(state: Work) -> None:
        if broken:
            broken.clear()
            fail()

    def second(state: Work) -> None:
        attempts.append(("second", current().attempt))
        interrupt("go on?")

    def third(state: Work, ctx: Context) -> None:
        attempts.append(("third", ctx.attempt))

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("first", first, retry=Retry(attempts=1))
    graph.add_node("second", second)
    graph.add_node("third", third)
    graph.add_edges(START, "first", "second", "third", END)
    app = graph.compile(checkpoint=CheckpointConfig(store=store, interval=interval))
    call.fails(app, {})
    call.resume(app)
    call.resume(app, answer="yes")
    assert attempts == [("second", 1), ("second", 2), ("third", 1)]


def mapping(store: Store, interval: int, node: Any) -> App[Any]:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("first", lambda state: {"log": ["first"]})
    graph.add_node("item", node)
    graph.add_edge(START, "first")
    graph.map("first", "item", over="xs", item="x")
    graph.add_edge("item", END)
    return graph.compile(checkpoint=CheckpointConfig(store=store, interval=interval))


@INTERVALS
@pytest.mark.parametrize("stop", [fail, ask])
def test_finished_items_do_not_run_again(
    call: Caller, store: Store, interval: int, stop: Callable[[], Any]
) -> None:
    """No result of an item was stored while the step before it was not saved."""
    ran: list[int] = []

    def item(state: Any) -> dict[str, Any]:
        ran.append(state["x"])
        if state["x"] == 2 and ran.count(2) == 1:
            stop()
        return {"log": [str(state["x"])]}

    app = mapping(store, interval, item)
    if stop is fail:
        call.fails(app, {"xs": [1, 2, 3]})
        result = call.resume(app)
    else:
        call.invoke(app, {"xs": [1, 2, 3]})
        result = call.resume(app, answer="yes")
    assert result["log"] == ["first", "1", "2", "3"]
    assert sorted(ran) == [1, 2, 2, 3]


@INTERVALS
def test_subgraph_resumes_where_it_failed(call: Caller, store: Store, interval: int) -> None:
    """It started over in another thread, and the failed one was left behind."""
    ran: list[str] = []

    def inner(state: Any, name: str) -> dict[str, Any]:
        ran.append(name)
        if ran == ["one", "two"]:
            fail()
        return {"log": [name]}

    sub: StateGraph[Work] = StateGraph(Work)
    sub.add_node("one", inner)
    sub.add_node("two", inner)
    sub.add_edges(START, "one", "two", END)
    app = after_plain_step(sub.compile(), store, interval)
    call.fails(app, {})
    assert call.resume(app)["log"] == ["first", "one", "two", "last"]
    assert ran == ["one", "two", "two"]
    assert [info.status for info in store.threads("default")] == ["completed"] * 2


@pytest.mark.parametrize("interval", [2, 3])
def test_no_crash_repeats_what_was_recorded(interval: int) -> None:
    """Steps may run again, recorded calls and stored results may not."""
    config = CheckpointConfig(store="memory://", interval=interval)
    graph: StateGraph[Work] = StateGraph(Work)

    def record(state: Work, ctx: Context) -> dict[str, Any]:
        ctx.once("mail", str)
        return {"log": [ctx.idempotency_key]}

    def look_up(state: Work) -> dict[str, Any]:
        current().once("look", str)
        return {"log": [current().idempotency_key]}

    graph.add_node("first", lambda state: {"log": ["first"]})
    graph.add_node("record", record)
    graph.add_node("second", lambda state: {"log": ["second"]})
    graph.add_node("look_up", look_up)
    graph.add_node("item", record)
    graph.add_edges(START, "first", "record", "second", "look_up")
    graph.map("look_up", "item", over="xs", item="x")
    graph.add_edge("item", END)
    app = graph.compile(checkpoint=config)

    def as_long(one: Any, other: Any) -> bool:
        return len(one["log"]) == len(other["log"])  # keys differ

    assert crash_everywhere(app, {"xs": [1, 2, 3]}, compare=as_long).mismatches == ()
