"""Streaming: typed events in order, with back-pressure, and a clean end when nobody reads."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    Event,
    InvalidRequest,
    StateGraph,
    Store,
    append,
    interrupt,
)
from milecastle.stores.memory import MemoryStore
from tests.acceptance.scenarios.calling import Caller, Calls, Paint, leftovers, rows


class Talk(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


def says(name: str) -> Any:
    def node(state: Any) -> dict[str, Any]:
        return {"log": [name]}

    return node


def line(store: Store | None, *nodes: Any) -> App[Any]:
    graph: StateGraph[Talk] = StateGraph(Talk)
    names = [f"n{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    graph.add_edges(START, *names, END)
    return graph.compile(store=store)


class Chatty:
    """Nodes of both colours that emit numbers, and count how far they got."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.emitted = 0
        self.began = threading.Event()
        self.ended = threading.Event()

    def sync(self, state: Any, ctx: Context) -> dict[str, Any]:
        try:
            for number in range(self.count):
                ctx.emit(number)
                self.emitted += 1
                self.began.set()
        finally:
            self.ended.set()
        return {"log": ["chatted"]}

    async def on_loop(self, state: Any, ctx: Context) -> dict[str, Any]:
        try:
            for number in range(self.count):
                await ctx.aemit(number)
                self.emitted += 1
                self.began.set()
        finally:
            self.ended.set()
        return {"log": ["chatted"]}


@pytest.fixture(params=["sync", "on_loop"])
def colour(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def emitted(events: list[Event]) -> list[Any]:
    return [event.update for event in events if event.type == "emit"]


# ---- what is seen


def test_updates_come_one_per_task_in_order(call: Caller, store: Store, paint: Paint) -> None:
    app = line(store, paint(says("a")), paint(says("b")))
    events = call.stream(app, {})
    assert [(e.type, e.node, e.update) for e in events] == [
        ("update", "n0", {"log": ["a"]}),
        ("update", "n1", {"log": ["b"]}),
    ]
    assert app.state("t").status == "completed"


def test_states_come_after_each_step(call: Caller, store: Store) -> None:
    events = call.stream(line(store, says("a"), says("b")), {"n": 1}, mode="state")
    logs = [event.state.get("log", []) for event in events]
    assert logs[-2:] == [["a"], ["a", "b"]]
    assert all(event.type == "state" for event in events)


def test_events_begin_and_end_with_the_graph(call: Caller, store: Store) -> None:
    events = call.stream(line(store, says("a"), says("b")), {}, mode="events")
    types = [event.type for event in events]
    assert (types[0], types[-1]) == ("graph_start", "graph_complete")
    saved = [event.seq for event in events if event.type == "checkpoint_save"]
    assert saved == [1, 2, 3]
    assert types.index("node_start") < types.index("node_complete")


def test_an_unknown_mode_is_refused(call: Caller) -> None:
    with pytest.raises(InvalidRequest, match="stream mode"):
        call.stream(line(MemoryStore(), says("a")), {}, mode="everything")


def test_what_a_node_emits_comes_before_its_update_and_in_order(
    call: Caller, store: Store, colour: str
) -> None:
    chatty = Chatty(300)
    events = call.stream(line(store, says("a"), getattr(chatty, colour), says("b")), {})
    assert emitted(events) == list(range(300))
    types = [event.type for event in events]
    assert types == ["update", *["emit"] * 300, "update", "update"]
    assert {event.node for event in events if event.type == "emit"} == {"n1"}


def test_each_task_of_a_fan_out_keeps_its_own_order(
    call: Caller, store: Store, colour: str
) -> None:
    def each(state: Any, ctx: Context) -> dict[str, Any]:
        for number in range(20):
            ctx.emit([state["item"], number])
        return {"log": [str(state["item"])]}

    async def aeach(state: Any, ctx: Context) -> dict[str, Any]:
        for number in range(20):
            await ctx.aemit([state["item"], number])
        return {"log": [str(state["item"])]}

    graph: StateGraph[Talk] = StateGraph(Talk)
    graph.add_node("each", each if colour == "sync" else aeach)
    graph.map(START, "each", over=lambda state: range(5), item="item")
    graph.add_edge("each", END)
    events = call.stream(graph.compile(store=store), {})
    for item in range(5):
        mine = [update[1] for update in emitted(events) if update[0] == item]
        assert mine == list(range(20))
    ended: set[str] = set()
    for event in events:
        task = event.task or ""
        assert event.type != "emit" or task not in ended
        if event.type == "update":
            ended.add(task)
    assert len(ended) == 5


def test_what_is_emitted_is_seen_while_the_node_still_runs(
    call: Caller, store: Store, colour: str
) -> None:
    seen = threading.Event()

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.emit("hello")
        assert seen.wait(60), "nobody read it"
        return {"log": ["done"]}

    async def anode(state: Any, ctx: Context) -> dict[str, Any]:
        await ctx.aemit("hello")
        end = time.monotonic() + 60
        while not seen.is_set():
            assert time.monotonic() < end, "nobody read it"
            await asyncio.sleep(0.002)
        return {"log": ["done"]}

    def notice(event: Event) -> bool:
        if event.type == "emit":
            seen.set()
        return False

    app = line(store, node if colour == "sync" else anode)
    assert emitted(call.stream(app, {}, until=notice)) == ["hello"]


def test_without_a_reader_emitting_does_nothing(call: Caller, store: Store, colour: str) -> None:
    chatty = Chatty(500)
    app = line(store, getattr(chatty, colour))
    assert call.invoke(app, {})["log"] == ["chatted"]
    assert chatty.emitted == 500


def test_a_question_and_a_sleep_end_the_stream_with_an_event(call: Caller, store: Store) -> None:
    def asks(state: Any, ctx: Context) -> dict[str, Any]:
        answer = interrupt("q", show=[1], answer=str)
        ctx.sleep(1000)
        return {"log": [answer]}

    app = line(store, asks)
    (event,) = call.stream(app, {})
    assert (event.type, event.node, event["question"], event["show"]) == (
        "interrupt",
        "n0",
        "q",
        [1],
    )
    assert event["id"] == app.state("t").interrupts[0].id
    (again,) = call.stream(app, {})
    assert (again.type, again["id"]) == ("interrupt", event["id"])
    (sleep,) = call.stream(app, None, answer="yes")
    assert (sleep.type, app.state("t").status) == ("sleep", "sleeping")


def app_store(app: App[Any]) -> Store:
    return app.store


def nested(store: Store, node: Any) -> App[Any]:
    deep = line(None, node, says("deep"))
    return line(store, says("a"), line(None, deep, says("middle")), says("b"))


def test_subgraphs_are_hidden_unless_they_are_asked_for(
    call: Caller, store: Store, colour: str
) -> None:
    chatty = Chatty(3)
    app = nested(store, getattr(chatty, colour))
    events = call.stream(app, {})
    assert [event.node for event in events if event.type == "update"] == ["n0", "n1", "n2"]
    assert emitted(events) == []
    events = call.stream(app, {}, "u", subgraphs=True)
    assert emitted(events) == [0, 1, 2]
    keys = {event.key.thread for event in events if event.key is not None}
    assert len(keys) == 3
    assert sum(event.type == "update" for event in events) == 7


# ---- back-pressure


def test_a_slow_reader_bounds_how_far_a_node_is_ahead(call: Caller, colour: str) -> None:
    chatty, ahead, read = Chatty(1000), list[int](), [0]

    def slowly(event: Event) -> bool:
        read[0] += 1
        if read[0] % 100 == 0:
            time.sleep(0.01)
            ahead.append(chatty.emitted - read[0])
        return False

    events = call.stream(line(MemoryStore(), getattr(chatty, colour)), {}, until=slowly)
    assert len(emitted(events)) == 1000
    assert max(ahead) <= 200


# ---- nobody reads any more


@pytest.mark.parametrize("count", [2, 70, 400])
def test_reader_that_stops_ends_the_run_at_the_last_commit(
    call: Caller, store: Store, colour: str, count: int
) -> None:
    before = threading.enumerate()
    chatty = Chatty(600)
    app = line(store, says("a"), getattr(chatty, colour), says("b"))
    seen: list[Event] = []

    def enough(event: Event) -> bool:
        seen.append(event)
        return len(seen) == count

    call.stream(app, {}, until=enough)
    assert len(seen) == count
    assert chatty.ended.wait(60)
    head = app.state("t")
    assert (head.status, head.state["log"], head.next) == ("cancelled", ["a"], ("n1",))
    assert leftovers(before) == []
    chatty.count = 5
    assert call.resume(app)["log"] == ["a", "chatted", "b"]


def test_every_task_that_waits_to_be_read_is_released(
    call: Caller, store: Store, colour: str
) -> None:
    before = threading.enumerate()
    chatty = [Chatty(500) for _ in range(6)]
    graph: StateGraph[Talk] = StateGraph(Talk)
    for number, talker in enumerate(chatty):
        graph.add_node(f"n{number}", getattr(talker, colour))
        graph.add_edge(START, f"n{number}")
        graph.add_edge(f"n{number}", END)
    app = graph.compile(store=store)

    def enough(event: Event) -> bool:
        time.sleep(0.01)  # long enough for all of them to be far ahead
        return bool(event.update == 3)

    call.stream(app, {}, until=enough)
    assert leftovers(before) == []
    assert app.state("t").status == "cancelled"


@pytest.mark.parametrize("mode", ["updates", "state", "events"])
def test_a_stream_may_be_left_after_any_event(call: Caller, mode: str) -> None:
    total = len(call.stream(nested(MemoryStore(), says("x")), {}, mode=mode, subgraphs=True))
    wanted = ["a", "x", "deep", "middle", "b"]
    for count in range(1, total + 1):
        app = nested(MemoryStore(), says("x"))
        left = [count]

        def enough(event: Event, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == 0

        before = threading.enumerate()
        call.stream(app, {}, mode=mode, subgraphs=True, until=enough)
        assert leftovers(before) == []
        info = list(app_store(app).threads("default", limit=1))
        if not info or info[0].status != "completed":
            call.invoke(app, {})
        assert app.state("t").state["log"] == wanted, f"left after {count} of {total}"


def test_a_stream_on_a_loop_that_lives_on_leaves_no_tasks_behind(store: Store, colour: str) -> None:
    async def main() -> int:
        chatty = Chatty(500)
        events: Any = line(store, getattr(chatty, colour)).astream({}, "t")
        async for _ in events:
            await events.aclose()
            break
        for _ in range(100):
            if chatty.ended.is_set() and len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.005)
        return len(asyncio.all_tasks())

    before = threading.enumerate()
    assert asyncio.run(main()) == 1
    assert leftovers(before) == []  # the loop's own threads for store calls end with it


def test_a_reader_that_is_cancelled_ends_the_run_cleanly(store: Store, colour: str) -> None:
    chatty = Chatty(100_000)
    app = line(store, getattr(chatty, colour))

    async def read() -> None:
        events: Any = app.astream({}, "t")
        async with aclosing(events):
            async for _ in events:
                await asyncio.sleep(0)

    async def main() -> None:
        reading = asyncio.create_task(read())
        await asyncio.to_thread(chatty.began.wait, 5)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(main())
    assert chatty.ended.wait(60)
    assert app.state("t").status == "cancelled"


def test_a_node_nobody_waits_for_any_more_records_nothing(call: Caller, store: Store) -> None:
    calls, gate, ended = Calls(), threading.Event(), threading.Event()

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        try:
            if calls.made:
                return {"log": ["done"]}
            ctx.emit("hello")
            gate.wait(5)
            calls("late")
            ctx.once("late", lambda: calls("did it"))
        finally:
            ended.set()
        return {"log": ["done"]}

    app = line(store, node)
    call.stream(app, {}, until=lambda event: True)
    gate.set()
    assert ended.wait(60)
    assert calls.made == ["late"]
    assert rows(store) == set()
    assert call.resume(app)["log"] == ["done"]


def test_a_subgraph_is_left_in_order_as_well(call: Caller, store: Store) -> None:
    calls = Calls()

    def counted(state: Any) -> dict[str, Any]:
        calls("first")
        return {"log": ["first"]}

    inner = line(None, counted, Chatty(300).sync, says("last"))
    app = line(store, inner)
    call.stream(app, {}, subgraphs=True, until=lambda event: event.type == "emit")
    statuses = {info.status for info in store.threads("default", limit=9)}
    assert statuses == {"cancelled"}
    assert call.resume(app)["log"] == ["first", "chatted", "last"]
    assert calls.count("first") == 1


# ---- the reader is not in the node


def test_reader_of_a_stream_is_outside_of_the_nodes_that_ran() -> None:
    app = line(MemoryStore(), says("a"), says("b"))
    for _ in app.stream({"n": 0}, "t"):
        with pytest.raises(InvalidRequest, match="inside a node"):
            interrupt("who?")


def test_reader_of_a_stream_on_a_loop_is_outside_of_the_nodes_that_ran() -> None:
    async def on_loop(state: Any) -> dict[str, Any]:
        return {"log": ["a"]}

    async def read() -> None:
        async for _ in line(MemoryStore(), on_loop, on_loop).astream({"n": 0}, "t"):
            with pytest.raises(InvalidRequest, match="inside a node"):
                interrupt("who?")

    asyncio.run(read())
