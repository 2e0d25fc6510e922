"""``ctx.take`` and ``ctx.settle``: runs share a bucket, wait for their turns, and hold no slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from milecastle import END, START, Context, Send, StateGraph, Store, ThreadKey, interrupt
from milecastle.ports.buckets import Bucket, Buckets, marks_of, require_buckets
from milecastle.testing import ManualClock, with_store
from tests.acceptance.fleet.working import QUICK, Trip, line, serving, start, until


def fill(store: Store, rate: int, burst: int, **more: Any) -> Buckets:
    """A bucket that all tenants share."""
    buckets = require_buckets(store.buckets)
    buckets.put(Bucket(name="gpt", rate=rate, burst=burst, **more))
    return buckets


def left(store: Store, place: int = 0) -> int:
    """How much may be taken now, if the clock of the store is that of the machine."""
    return require_buckets(store.buckets).levels()[place].left(time.time_ns() // 1000)


def takes(
    note: Callable[[str], object] | None = None, is_async: bool = False
) -> Callable[..., Any]:
    """A node that takes from the bucket, and then notes its thread."""

    def noted(ctx: Context) -> dict[str, Any]:
        if note is not None and ctx.thread is not None:
            note(ctx.thread.thread)
        return {"log": ["took"]}

    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.take("gpt")
        return noted(ctx)

    async def anode(state: Trip, ctx: Context) -> dict[str, Any]:
        await ctx.atake("gpt")
        return noted(ctx)

    return anode if is_async else node


def nothing(state: Trip) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("is_async", [False, True])
def test_runs_get_their_turns_in_order_and_hold_no_slot(store: Store, is_async: bool) -> None:
    """Fails if a run that waits for its turn occupies a worker: then the other graph waits too."""
    fill(store, rate=5, period=6.0, burst=1)
    ends: list[str] = []
    app = line(store, ("takes", takes(ends.append, is_async)))
    other = line(store, ("quick", nothing), name="other")

    async def serve() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        async with serving(app, other, options=QUICK.replaced(concurrency=1)):
            began = loop.time()
            handles = [await app.asubmit(start(), f"t{n}") for n in range(2)]
            await until(lambda: is_asleep(store, "t1"))
            await (await other.asubmit(start(), "quick")).aresult()
            passed = loop.time() - began
            for handle in handles:
                assert (await handle.aresult()).status == "completed"
            return passed, loop.time() - began

    quick, whole = asyncio.run(serve())
    assert quick < 1.1 < whole
    assert ends == ["t0", "t1"]


async def is_asleep(store: Store, thread: str) -> bool:
    found = store.thread(ThreadKey("default", thread))
    return found is not None and found.status == "sleeping"


def test_a_node_that_runs_again_takes_once(store: Store) -> None:
    """Fails if the mark differs between runs of a node: it takes again after the answer."""
    fill(store, rate=1, period=86400.0, burst=10)

    def asks(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.take("gpt", 5)
        ctx.settle("gpt", -2)
        return {"log": [interrupt("go on?")]}

    async def asks_too(state: Trip, ctx: Context) -> dict[str, Any]:
        await ctx.atake("gpt", 4)
        await ctx.asettle("gpt", 1)
        return {"log": [interrupt("go on?")]}

    app = line(store, ("asks", asks), ("asks too", asks_too))
    assert app.invoke(start(), "t").status == "interrupted"
    assert left(store) == 10 - 5 + 2
    for rest in (10 - 3 - 4 - 1, 10 - 3 - 4 - 1):
        app.resume("t", "yes")
        assert left(store) == rest
    assert app.state("t")["log"] == ["yes", "yes"]


def test_a_fork_takes_for_itself(store: Store) -> None:
    """Fails if a fork wakes with the turn of its origin: then two runs go on one turn."""
    buckets = fill(store, rate=1, period=30.0, burst=1)
    app = line(store, ("takes", takes()))
    assert app.invoke(start(), "first").status == "completed"
    assert app.invoke(start(), "t").status == "sleeping"
    app.fork("t", None, "fork")
    later = with_store(app, store, clock=ManualClock(time.time_ns() // 1000 + 60_000_000))
    assert later.resume("fork").status == "sleeping"
    waiting = [buckets.waiting("default", marks_of(key(thread))) for thread in ("t", "fork")]
    assert [len(each) for each in waiting] == [1, 1]
    assert waiting[0][0].wait + 29 < waiting[1][0].wait


def key(thread: str) -> ThreadKey:
    return ThreadKey("default", thread)


def test_subgraphs_and_fan_outs_take_for_each_task(store: Store) -> None:
    """Fails if tasks share a mark, or if a subgraph's turn does not wake its parent."""

    buckets = fill(store, rate=3, burst=2)

    def six(state: Trip) -> list[Send]:
        return [Send("item", {"n": n}) for n in range(6)]

    child: StateGraph[Trip] = StateGraph(Trip, name="child")
    child.add_node("takes", takes())
    child.add_edges(START, "takes", END)
    graph: StateGraph[Trip] = StateGraph(Trip, name="parent")
    graph.add_node("fan", nothing)
    graph.add_node("item", takes())
    graph.add_node("inner", child.compile())
    graph.add_edge(START, "fan")
    graph.add_conditional_edges("fan", six)
    graph.add_edges("item", "inner", END)
    app = graph.compile(store=store)

    async def serve() -> Any:
        async with serving(app):
            return await (await app.asubmit(start(), "t")).aresult()

    found = asyncio.run(serve())
    assert found.state["log"] == ["took"] * 7
    assert buckets.levels()[0].waiting == 0


def test_a_provider_that_says_when_holds_the_bucket_for_all(store: Store) -> None:
    """Fails if ``until=`` moves only the caller's turn."""
    fill(store, rate=100, burst=10)
    later = datetime.now(UTC) + timedelta(seconds=40)
    untils: list[Any] = [30, timedelta(seconds=35), later]

    def refused(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.take("gpt")
        ctx.settle("gpt", -1, until=untils[state["n"]])
        return {"n": state["n"] + 1}

    asked = line(store, ("refused", refused), name="asked")
    app = line(store, ("takes", takes()))
    assert asked.invoke(start(), "asked").status == "completed"
    found = app.invoke(start(), "t")
    assert found.status == "sleeping"
    waiting = require_buckets(store.buckets).waiting("default", marks_of(key("t")))
    assert 25 < waiting[0].wait < 31


def test_what_cannot_be_taken_is_refused(store: Store) -> None:
    """Each names the bucket and what to do; nothing is taken."""
    fill(store, rate=5, burst=5)

    def tried(call: Callable[[Context], object]) -> str:
        def node(state: Trip, ctx: Context) -> dict[str, Any]:
            call(ctx)
            return {}

        app = line(store, ("node", node))
        with pytest.raises(Exception) as caught:  # noqa: PT011 - compared below
            app.invoke(start())
        return str(caught.value.__cause__ or caught.value)

    cases: list[tuple[Callable[[Context], object], str]] = [
        (lambda ctx: ctx.take("gtp"), "milecastle queue bucket 'gtp' --rate"),
        (lambda ctx: ctx.settle("gtp", 1), "there is no bucket 'gtp'"),
        (lambda ctx: ctx.take("gpt", 6), "at most 5"),
        (lambda ctx: ctx.take("gpt", 0), "whole number from 1"),
        (lambda ctx: ctx.take("gpt", cast("Any", 1.5)), "not float"),
    ]
    for call, said in cases:
        assert said in tried(call), said
    assert left(store) == 5
