"""Observers that wrap tasks, and the context of the current node from anywhere in its code."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    Event,
    ExecutionError,
    InvalidRequest,
    Retry,
    StateGraph,
    append,
    current,
    interrupt,
)

span: ContextVar[str] = ContextVar("span", default="none")


class Trip(TypedDict, total=False):
    items: list[int]
    item: int
    seen: Annotated[list[Any], append]


class Tracer:
    """Sets a variable around each task, and notes how it was left."""

    def __init__(self) -> None:
        self.left: list[tuple[str, str | None]] = []

    def on_event(self, event: Event) -> None:
        """It is asked to wrap, and hears nothing."""

    @contextmanager
    def wrap_task(self, event: Event) -> Generator[None, None, None]:
        name = f"{event.task}/{event.attempt}"
        token, raised = span.set(name), None
        try:
            yield
        except BaseException as error:
            raised = type(error).__name__
            raise
        finally:
            span.reset(token)
            self.left.append((name, raised))


def see(state: Trip) -> dict[str, Any]:
    return {"seen": [span.get()]}


async def asee(state: Trip) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"seen": [span.get()]}


def inline(*nodes: tuple[str, Any], **settings: Any) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip)
    for name, function in nodes:
        graph.add_node(name, function)
    graph.add_edges(START, *(name for name, _ in nodes), END)
    return graph.compile(**settings)


def fan_out(work: Any, **settings: Any) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("split", lambda: None)
    graph.add_node("work", work)
    graph.add_edge(START, "split")
    graph.map("split", "work", over="items", item="item")
    graph.add_edge("work", END)
    return graph.compile(**settings)


def seen(app: App[Trip], awaited: bool) -> list[Any]:
    given: Trip = {"items": [1, 2]}
    result = asyncio.run(app.ainvoke(given)) if awaited else app.invoke(given)
    return list(result["seen"])


BOTH = pytest.mark.parametrize("awaited", [False, True])


@BOTH
@pytest.mark.parametrize("work", [see, asee])
def test_node_runs_inside_what_the_observer_gives(work: Any, awaited: bool) -> None:
    """Seen to fail without the wrapping in `perform`, and with an await outside of it."""
    tracer = Tracer()
    app = inline(("a", work), ("b", work), observers=[tracer])
    assert seen(app, awaited) == ["a/1", "b/1"]
    assert span.get() == "none"
    assert tracer.left == [("a/1", None), ("b/1", None)]


@BOTH
@pytest.mark.parametrize("work", [see, asee])
def test_items_of_a_fan_out_are_wrapped_where_they_run(work: Any, awaited: bool) -> None:
    app = fan_out(work, observers=[Tracer()])
    assert seen(app, awaited) == ["work#0/1", "work#1/1"]


@BOTH
def test_each_attempt_is_wrapped_and_the_wrapper_meets_the_error(awaited: bool) -> None:
    tracer, attempts = Tracer(), list[str]()

    def flaky(state: Trip) -> dict[str, Any]:
        attempts.append(span.get())
        if len(attempts) < 3:
            raise ConnectionError("at first")
        return {"seen": attempts}

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("flaky", flaky, retry=Retry(attempts=3, delay=0.001))
    graph.add_edges(START, "flaky", END)
    app = graph.compile(observers=[tracer])
    assert seen(app, awaited) == ["flaky/1", "flaky/2", "flaky/3"]
    assert [raised for _, raised in tracer.left] == ["ConnectionError", "ConnectionError", None]


def test_node_that_asks_has_not_raised() -> None:
    tracer = Tracer()
    app = inline(
        ("ask", lambda: {"seen": [interrupt("go?")]}), store="memory://", observers=[tracer]
    )
    app.invoke({}, "t")
    assert app.resume("t", answer=1)["seen"] == [1]
    assert [raised for _, raised in tracer.left] == [None, None]


class Hostile(Tracer):
    """Fails, or swallows, at a place."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.asked = 0

    @contextmanager
    def wrap_task(self, event: Event) -> Generator[None, None, None]:
        self.asked += 1
        if self.place == "entering":
            raise ValueError("on purpose")
        try:
            yield
        except Exception:
            if self.place != "swallowing":
                raise
        if self.place == "leaving":
            raise ValueError("on purpose")


@pytest.mark.parametrize("place", ["entering", "leaving"])
def test_wrapper_that_raises_is_logged_once_and_breaks_nothing(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail without the guards around `__enter__` and `__exit__`."""
    hostile = Hostile(place)
    app = inline(("a", see), ("b", see), observers=[hostile, Tracer()])
    with caplog.at_level(logging.WARNING, "milecastle"):
        assert seen(app, awaited=False) == ["a/1", "b/1"]
    assert len(caplog.records) == 1
    assert hostile.asked == 1


def test_wrapper_cannot_suppress_a_failure() -> None:
    def fail(state: Trip) -> None:
        raise ValueError("on purpose")

    with pytest.raises(ExecutionError):
        inline(("a", fail), observers=[Hostile("swallowing")]).invoke({})


# -- current() -----------------------------------------------------------------------------------


def where() -> str:
    """Code that is not handed the context."""
    found = current()
    return f"{found.node} {found.task} {found.step} {found.attempt}"


def tell_where(state: Trip) -> dict[str, Any]:
    return {"seen": [where()]}


async def atell_where(state: Trip) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"seen": [where()]}


@BOTH
@pytest.mark.parametrize("work", [tell_where, atell_where])
def test_current_is_the_context_of_the_node(work: Any, awaited: bool) -> None:
    assert seen(inline(("a", work), ("b", work)), awaited) == ["a a 1 1", "b b 2 1"]
    assert seen(fan_out(work), awaited) == ["work work#0 2 1", "work work#1 2 1"]


def test_current_is_the_context_that_the_node_was_handed() -> None:
    def same(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"seen": [current() is ctx, current() is current()]}

    assert seen(inline(("a", same)), awaited=False) == [True, True]
    assert seen(fan_out(same), awaited=False) == [True] * 4


def test_current_records_and_asks_like_ctx() -> None:
    done: list[int] = []

    def once(state: Trip) -> dict[str, Any]:
        current().once("mail", done.append, 1)
        return {"seen": [interrupt("first?"), interrupt("second?")]}

    app = inline(("a", once), store="memory://")
    app.invoke({}, "t")
    app.resume("t", answer="x")
    assert app.resume("t", answer="y")["seen"] == ["x", "y"]
    assert done == [1]


def test_subgraph_has_its_own_context_and_the_parent_its_own() -> None:
    inner = inline(("inside", tell_where))
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("before", tell_where)
    graph.add_node("sub", inner)
    graph.add_node("after", tell_where)
    graph.add_edges(START, "before", "sub", "after", END)
    app = graph.compile()
    assert seen(app, awaited=False) == [
        "before before 1 1",
        "inside inside 1 1",
        "after after 3 1",
    ]


def test_run_inside_a_node_does_not_hide_the_outer_context() -> None:
    inner = inline(("inside", tell_where))

    def outer(state: Trip) -> dict[str, Any]:
        first = where()
        streamed = [where() for _ in inner.stream({})]
        return {"seen": [first, *streamed, *inner.invoke({})["seen"], where()]}

    assert seen(inline(("outer", outer)), awaited=False) == [
        "outer outer 1 1",
        "outer outer 1 1",
        "inside inside 1 1",
        "outer outer 1 1",
    ]


def test_current_outside_of_a_node_is_refused() -> None:
    """Seen to fail in the router, and in the thread, with `is_running` left out."""
    left: list[threading.Thread] = []
    refused: list[str] = []
    go = threading.Event()

    def late(task: Any) -> None:
        go.wait(60)
        task.run(try_it, "thread")

    def try_it(place: str) -> None:
        try:
            current()
        except InvalidRequest:
            refused.append(place)

    def leave_a_thread(state: Trip) -> dict[str, Any]:
        from contextvars import copy_context

        left.append(threading.Thread(target=late, args=(copy_context(),)))
        left[0].start()
        return {"seen": [where()]}

    def route(state: Trip) -> str:
        try_it("router")
        return "b"

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", leave_a_thread)
    graph.add_node("b", tell_where)
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", route, ["b"])
    graph.add_edge("b", END)
    app = graph.compile()
    for _ in app.stream({}):
        try_it("reader")
    go.set()
    left[0].join(20)
    try_it("after")
    assert refused == ["router", "reader", "reader", "thread", "after"]
