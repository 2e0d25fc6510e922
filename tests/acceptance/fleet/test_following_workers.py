"""F12: what nodes emit in a worker reaches readers elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from milecastle import END, START, App, Context, Event, StateGraph, Store, ThreadKey
from milecastle.app.emitting import feed_of
from milecastle.stores.postgres.feed import PostgresFeed
from tests.acceptance.fleet.working import Trip, line, note, serving, start, until, work

COUNT = 20


def emitting(state: Trip, ctx: Context) -> dict[str, Any]:
    for number in range(COUNT):
        ctx.emit({"token": number})
    return {"log": ["emitted"]}


async def aemitting(state: Trip, ctx: Context) -> dict[str, Any]:
    for number in range(COUNT):
        await ctx.aemit({"token": number})
    return {"log": ["emitted"]}


def tokens(events: list[Event[Trip]]) -> list[int]:
    return [event.update["token"] for event in events if event.type == "emit"]


async def followed(app: App[Trip], *apps: App[Trip], sync: bool = False) -> list[Event[Trip]]:
    """The events of a run that a worker of these apps starts once it is followed."""
    await app.asubmit(start(), "t")

    async def read() -> list[Event[Trip]]:
        if sync:
            return await asyncio.to_thread(lambda: list(app.follow("t", emitted=True)))
        return [event async for event in app.afollow("t", emitted=True)]

    reading = asyncio.create_task(read())

    async def is_listening() -> bool:
        return bool(subscriptions(app.store))

    await until(is_listening, 30)  # a reader that comes late misses what was emitted before it
    async with serving(*apps, app), asyncio.timeout(60):
        return await reading


@pytest.mark.requirement("F12")
@pytest.mark.parametrize("sync", [True, False])
def test_a_follower_gets_what_nodes_of_a_worker_emit(store: Store, sync: bool) -> None:
    """In order, with the states, until the thread stops. Fails if the run does not publish."""
    app = line(store, ("emit", emitting if sync else aemitting), ("after", note("after")))
    events = asyncio.run(followed(app, sync=sync))
    assert tokens(events) == list(range(COUNT))
    one = next(event for event in events if event.type == "emit")
    assert (one.node, one.task, one.attempt, one.step) == ("emit", "emit", 1, 1)
    assert one.key == app.state("t").key
    states = [event.state["log"] for event in events if event.type == "state"]
    assert [log for log in states if log] == [["emitted"], ["emitted", "after"]]


def test_values_of_subgraphs_reach_the_follower_of_the_thread(store: Store) -> None:
    """Fails if a subgraph's run does not know that its values are published."""
    inner = line(None, ("inner", emitting), name="inner")
    graph: StateGraph[Trip] = StateGraph(Trip, name="outer")
    graph.add_node("outer", inner)
    graph.add_edges(START, "outer", END)
    app = graph.compile(store=store)
    events = asyncio.run(followed(app))
    assert tokens(events) == list(range(COUNT))
    (key,) = {event.key for event in events if event.type == "emit"}
    assert key is not None
    assert key.thread.startswith("t\x1f")


def test_a_follower_without_emitted_gets_states_only(store: Store) -> None:
    app = line(store, ("emit", emitting))
    app.submit(start(), "t")

    async def use() -> list[str]:
        async with serving(app):
            return [event.type async for event in app.afollow("t")]

    assert set(asyncio.run(use())) == {"state"}


def test_values_that_cannot_be_sent_do_not_fail_the_node(store: Store) -> None:
    """Fails if ``emit`` raises in a worker what it accepts elsewhere."""

    def odd(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.emit(object())
        return {"log": ["fine"]}

    app = line(store, ("odd", odd))

    async def use() -> None:
        async with serving(app):
            await app.asubmit(start(), "t")
            result = await app.await_result("t")
            assert result.state["log"] == ["fine"]

    asyncio.run(use())


def test_a_reader_that_stops_ends_its_subscription(store: Store) -> None:
    """Fails without the ``finally``: threads of readers stay behind."""
    app = line(store, ("emit", emitting), ("after", note("after")))
    app.submit(start(), "t")

    async def use() -> None:
        events = cast("AsyncGenerator[Event[Trip]]", app.afollow("t", emitted=True))
        await anext(events)
        await events.aclose()

        async def is_over() -> bool:
            return not subscriptions(store)

        await until(is_over, 30)

    asyncio.run(use())
    sync = app.follow("t", emitted=True)
    next(sync)
    assert subscriptions(store)
    del sync
    assert not subscriptions(store)


def subscriptions(store: Store) -> list[Any]:
    """What still listens, wherever the store keeps it."""
    feed = feed_of(store)
    if isinstance(feed, PostgresFeed):
        kept = cast("list[Any]", vars(_inside(feed, "_receiver"))["_subscriptions"])
        return [one for one in kept if one.ready.is_set()]
    return list(cast("dict[Any, Any]", _inside(feed, "_heard")))


def _inside(thing: object, name: str) -> object:
    return cast("dict[str, object]", vars(thing))[name]


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_thread_that_was_created_again_is_not_followed_on(store: Store, nodes: int) -> None:
    """Its new log is as long as the old one, or longer.

    Seen to fail: the changes of the new log were shown on top of the state of the old one.
    """
    app = line(store, *((f"{number}", note(f"{number}")) for number in range(nodes)))
    app.submit(start(), "t")
    following = app.follow("t", poll=0.01)
    assert next(following).seq == 1
    store.delete(ThreadKey("default", "t"))
    app.submit({"n": 7, "log": ["new"]}, "t")
    if nodes > 1:
        work(app)
    assert list(following) == []

    async def read() -> list[Event[Trip]]:
        return [event async for event in app.afollow("t")]

    if nodes > 1:
        assert [event.state["log"][:1] for event in asyncio.run(read())] == [["new"]] * (nodes + 1)
