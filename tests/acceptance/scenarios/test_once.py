"""Recorded steps: `ctx.once` is not repeated by a retry, an answer or a takeover."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Context,
    ExecutionError,
    InvalidRequest,
    Retry,
    StateGraph,
    Store,
    UnserializableState,
    append,
    interrupt,
)
from milecastle.stores.memory import MemoryStore
from milecastle.testing import crash_everywhere
from tests.acceptance.scenarios.calling import (
    COLOURS,
    KEY,
    Caller,
    Calls,
    crash_at,
    die_at_work,
    of_state,
    rows,
)


class Work(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


NOW = Retry(attempts=3, delay=0)


class Shop:
    """A node that charges once, of both colours, and may then do something else."""

    def __init__(self, after: Any = None, name: str = "charge") -> None:
        self.calls = Calls()
        self.after = after
        self.name = name
        self.keys: list[str] = []

    def charge(self, amount: int) -> str:
        self.calls("charge")
        return f"receipt {amount} no {len(self.calls.made)}"

    async def acharge(self, amount: int) -> str:
        return self.charge(amount)

    def sync(self, state: Any, ctx: Context) -> dict[str, Any]:
        self.keys.append(ctx.idempotency_key)
        receipt = ctx.once(self.name, self.charge, 5)
        return {"log": [receipt, *(self.after(state, ctx) if self.after else ())]}

    async def on_loop(self, state: Any, ctx: Context) -> dict[str, Any]:
        self.keys.append(ctx.idempotency_key)
        receipt = await ctx.aonce(self.name, self.acharge, 5)
        return {"log": [receipt, *(self.after(state, ctx) if self.after else ())]}


def asks_once(state: Any, ctx: Context) -> list[str]:
    return [interrupt("q", answer=str)]


def one(node: Any, store: Store | None, **policy: Any) -> App[Work]:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("pay", node, **policy)
    graph.add_edges(START, "pay", END)
    return graph.compile(store=store)


@pytest.fixture(params=["sync", "on_loop"])
def colour(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def test_what_is_recorded_is_not_repeated_by_a_retry(
    call: Caller, store: Store, colour: str
) -> None:
    def breaks(state: Any, ctx: Context) -> list[str]:
        if ctx.attempt < 3:
            raise ValueError("no")
        return [str(ctx.attempt)]

    shop = Shop(breaks)
    result = call.invoke(one(getattr(shop, colour), store, retry=NOW), {})
    assert result["log"] == ["receipt 5 no 1", "3"]
    assert shop.calls.count("charge") == 1
    assert len(set(shop.keys)) == 1


@pytest.mark.parametrize("name", ["charge", "charge!", "a/b", "a:b?c", "", "ümläut \x00"])
def test_what_is_recorded_is_not_repeated_when_a_failed_run_is_resumed(
    call: Caller, store: Store, colour: str, name: str
) -> None:
    broken = [True]

    def breaks(state: Any, ctx: Context) -> list[str]:
        if broken:
            raise ValueError("no")
        return []

    shop = Shop(breaks, name)
    app = one(getattr(shop, colour), store)
    call.fails(app, {})
    broken.clear()
    assert call.resume(app)["log"] == ["receipt 5 no 1"]
    assert shop.calls.count("charge") == 1


def test_what_is_recorded_is_not_repeated_by_an_answer(
    call: Caller, store: Store, colour: str
) -> None:
    def asks(state: Any, ctx: Context) -> list[str]:
        return [interrupt("one", answer=str), interrupt("two", answer=str)]

    shop = Shop(asks)
    app = one(getattr(shop, colour), store)
    call.invoke(app, {})
    call.resume(app, answer="1")
    assert call.resume(app, answer="2")["log"] == ["receipt 5 no 1", "1", "2"]
    assert shop.calls.count("charge") == 1
    assert len(set(shop.keys)) == 1


def test_what_is_recorded_is_not_repeated_by_a_takeover(call: Caller, store: Store) -> None:
    shop = Shop()
    app = one(shop.sync, store)
    kinds = [crash_at(app, {}, 2), crash_at(app, {}, 2)]
    assert kinds[0] == "RunTask"
    assert "1?pay/charge" in rows(store)
    assert call.invoke(app, {})["log"] == ["receipt 5 no 1"]
    assert shop.calls.count("charge") == 1


def test_nothing_is_recorded_for_a_node_that_was_interrupted(store: Store) -> None:
    """What it has started may still run. Fails if that can write to the thread of the run."""
    kept: list[Context] = []

    def leaves(state: Any, ctx: Context) -> None:
        kept.append(ctx)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one(leaves, store).invoke({}, "t")
    with pytest.raises(InvalidRequest, match="is over"):
        kept[0].once("late", str)
    assert not any("?" in row for row in rows(store))


@pytest.mark.parametrize("interval", [1, 5])
def test_resumed_run_is_in_the_log_before_a_node_can_record(
    call: Caller, store: Store, interval: int
) -> None:
    """Another run may have taken the thread. Fails if only the first node is looked at."""
    broken, heads = [True], list[tuple[str, str]]()

    def first(state: Any) -> None:
        if broken:
            raise ValueError("no")

    def second(state: Any, ctx: Context) -> None:
        head = store.head(KEY)
        heads.append((head.run_id if head else "", ctx.run_id))

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edges(START, "first", "second", END)
    app = graph.compile(checkpoint=CheckpointConfig(store=store, interval=interval))
    call.fails(app, {})
    broken.clear()
    resumed = call.resume(app).run_id
    assert heads == [(resumed, resumed)]


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_attempts_of_a_step_that_was_taken_over_are_counted(
    call: Caller, store: Store, colour: str
) -> None:
    """And those of the next step from one. Fails if the count is of another step."""
    attempts: list[tuple[str, int]] = []

    def node(state: Any, name: str, ctx: Context) -> None:
        attempts.append((name, ctx.attempt))

    paint = COLOURS[f"{colour} nodes"]
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("first", paint(node))
    graph.add_node("second", paint(node))
    graph.add_edges(START, "first", "second", END)
    app = graph.compile(store=store)
    die_at_work(app, {})
    call.resume(app)
    assert attempts == [("first", 1), ("first", 2), ("second", 1)]


def test_an_effect_that_failed_is_not_recorded(call: Caller, store: Store) -> None:
    calls = Calls()

    def flaky() -> str:
        calls("flaky")
        if calls.count("flaky") == 1:
            raise OSError("no")
        return "done"

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.once("flaky", flaky)]}

    assert call.invoke(one(node, store, retry=NOW), {})["log"] == ["done"]
    assert calls.count("flaky") == 2


def test_nothing_is_a_result_as_well(call: Caller, store: Store) -> None:
    calls, broken = Calls(), [True]

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.once("none", lambda: calls("none"))
        if broken:
            raise ValueError("no")
        return {"log": ["done"]}

    app = one(node, store)
    call.fails(app, {})
    broken.clear()
    call.resume(app)
    assert calls.count("none") == 1


def test_what_is_recorded_comes_back_as_it_was(call: Caller, store: Store) -> None:
    value = {
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "cost": Decimal("1.10"),
        "id": UUID(int=7),
        "pair": (1, b"\x00\xff"),
        "set": {1, 2},
    }
    seen: list[Any] = []

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        seen.append(ctx.once("value", lambda: value))
        if len(seen) == 1:
            raise ValueError("no")
        return {}

    app = one(node, store)
    call.fails(app, {})
    call.resume(app)
    assert seen[1] == value
    assert type(seen[1]["pair"]) is tuple


def test_a_result_that_cannot_be_stored_says_so(call: Caller, store: Store) -> None:
    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.once("lock", lambda: object())
        return {}

    with pytest.raises(ExecutionError) as raised:
        call.invoke(one(node, store), {})
    assert isinstance(raised.value.__cause__, UnserializableState)


def test_names_are_of_one_task_and_one_step(call: Caller, store: Store) -> None:
    shop = Shop()
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("count", of_state(lambda state: {"n": state["n"] + 1}))
    graph.add_node("pay", shop.sync)
    graph.add_node("also", shop.sync)
    graph.add_edges(START, "count", "pay")
    graph.add_edge("count", "also")
    graph.add_edge("pay", "count", when=lambda state: state.get("n", 0) < 2)
    graph.add_edge("pay", END)
    graph.add_edge("also", END)
    result = call.invoke(graph.compile(store=store), {"n": 0})
    assert shop.calls.count("charge") == 4
    assert len(set(result["log"])) == 4
    assert len(set(shop.keys)) == 4


def test_each_item_of_a_fan_out_records_for_itself(call: Caller, store: Store) -> None:
    calls = Calls()

    def work(item: int) -> str:
        calls(item)
        return f"item {item}"

    def each(state: Any, ctx: Context) -> dict[str, Any]:
        done = ctx.once("work", work, state["item"])
        if calls.count("all") == 0 and state["item"] == 2:
            calls("all")
            raise ValueError("no")
        return {"log": [done]}

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("each", each)
    graph.map(START, "each", over=lambda state: range(4), item="item")
    graph.add_edge("each", END)
    app = graph.compile(store=store)
    call.fails(app, {})
    assert call.resume(app)["log"] == [f"item {number}" for number in range(4)]
    assert [calls.count(number) for number in range(4)] == [1, 1, 1, 1]


def test_a_subgraph_records_for_itself(call: Caller, store: Store) -> None:
    shop = Shop(asks_once)
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("a", one(shop.sync, None))
    graph.add_node("b", one(shop.sync, None))
    for name in ("a", "b"):
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store=store)
    result = call.invoke(app, {})
    call.resume(app, answers={found.id: "yes" for found in result.interrupts})
    assert shop.calls.count("charge") == 2
    assert len(set(shop.keys)) == 2


def test_fork_has_its_own_keys(call: Caller, store: Store) -> None:
    shop = Shop(asks_once)
    app = one(shop.sync, store)
    call.invoke(app, {})
    app.fork("t", None, "fork")
    call.resume(app, answer="a")
    call.resume(app, "fork", answer="b")
    assert len(set(shop.keys)) == 2


def test_an_async_effect_needs_aonce(call: Caller) -> None:
    shop = Shop()

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        later: Any = ctx.once("charge", shop.acharge, 5)
        assert later is None
        return {}

    error = call.fails(one(node, MemoryStore()), {})
    assert isinstance(error.__cause__, InvalidRequest)
    assert "aonce" in str(error.__cause__)


def test_without_a_store_an_effect_is_done_once_a_run(call: Caller, colour: str) -> None:
    def breaks(state: Any, ctx: Context) -> list[str]:
        if ctx.attempt < 2:
            raise ValueError("no")
        return []

    shop = Shop(breaks)
    app = one(getattr(shop, colour), None, retry=NOW)
    result = call.invoke(app, {}, thread=None)
    assert result["log"] == ["receipt 5 no 1"]


def test_no_crash_after_the_record_repeats_the_effect() -> None:
    shop = Shop()
    report = crash_everywhere(one(shop.sync, MemoryStore()), {}, compare=lambda a, b: True)
    # Once undisturbed and once for each crash, each on a separate thread; and again for the
    # one crash that falls between the effect and its record.
    assert shop.calls.count("charge") == report.crashes + 2
