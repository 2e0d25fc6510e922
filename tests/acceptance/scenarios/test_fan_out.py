"""G7: dynamic fan-out. `Send` and `map`, limits, item order, and crashes in the middle."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Command,
    Context,
    ExecutionOptions,
    InvalidUpdate,
    Send,
    StateGraph,
    Store,
    append,
)
from milecastle.errors import RoutingError
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from tests.acceptance.scenarios.calling import (
    KEY,
    Caller,
    Calls,
    Gauge,
    Paint,
    crash_at,
    leading,
    of_state,
    rows,
)


class Work(TypedDict, total=False):
    items: list[int]
    done: Annotated[list[str], append]
    last: str


def mapped(node: Any, store: Store | None, **policy: Any) -> App[Work]:
    """start -> each item -> END."""
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("start", of_state(lambda state: None))
    graph.add_node("each", node, **policy)
    graph.add_edge(START, "start")
    graph.map("start", "each", over="items", item="item")
    graph.add_edge("each", END)
    return graph.compile(store=store)


def told(state: Any) -> dict[str, Any]:
    return {"done": [f"item {state['item']}"]}


def in_order(count: int) -> list[str]:
    return [f"item {number}" for number in range(count)]


@pytest.mark.requirement("G7", api="StateGraph.map")
def test_updates_are_applied_in_the_order_of_the_items_whichever_ends_first(
    call: Caller, store: Store, paint: Paint
) -> None:
    def slow_first(state: Any) -> dict[str, Any]:
        time.sleep(0.004 * (4 - state["item"]))
        return told(state)

    app = mapped(paint(slow_first), store)
    result = call.invoke(app, {"items": [0, 1, 2, 3]})
    assert result["done"] == in_order(4)
    assert app.state("t").state.get("done") == in_order(4)
    assert "item" not in result.state


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync nodes", "async nodes"])
@pytest.mark.requirement("G7", api="StateGraph.map")
def test_of_a_thousand_items_never_more_than_the_limit_run_at_once(
    call: Caller, kind: str, is_async: bool, tmp_path: Path
) -> None:
    gauge = Gauge()

    def each(state: Any) -> dict[str, Any]:
        with gauge:
            time.sleep(0)
            return told(state)

    async def aeach(state: Any) -> dict[str, Any]:
        with gauge:
            await asyncio.sleep(0)
            return told(state)

    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")
    app = mapped(aeach if is_async else each, store, limit=7)
    result = call.invoke(app, {"items": list(range(1000))})
    assert result["done"] == in_order(1000)
    assert gauge.most <= 7
    assert gauge.most > 1 or not is_async
    store.close()


def test_the_limit_of_the_run_holds_for_all_nodes_together(call: Caller, paint: Paint) -> None:
    gauge = Gauge()

    def each(state: Any) -> dict[str, Any]:
        with gauge:
            time.sleep(0.002)
            return told(state)

    app = mapped(paint(each), MemoryStore())
    options = ExecutionOptions(max_parallel=3)
    result = call.invoke(app, {"items": list(range(20))}, options=options)
    assert result["done"] == in_order(20)
    assert gauge.most <= 3


def test_a_finished_item_is_on_record_while_others_run(call: Caller, store: Store) -> None:
    def each(state: Any) -> dict[str, Any]:
        end = time.monotonic() + 60
        while state["item"] == 2 and not {"2:each#0", "2:each#1"} <= rows(store):
            assert time.monotonic() < end, "the other two are not on record"
            time.sleep(0.002)
        return told(state)

    assert call.invoke(mapped(each, store), {"items": [0, 1, 2]})["done"] == in_order(3)
    assert rows(store) == set()


@pytest.mark.parametrize("effect", range(3, 16, 2))
@pytest.mark.requirement("G7", api="StateGraph.map")
def test_after_a_crash_only_unfinished_items_are_repeated(
    call: Caller, store: Store, effect: int
) -> None:
    calls = Calls()

    def each(state: Any) -> dict[str, Any]:
        calls(state["item"])
        return told(state)

    app = mapped(each, store, limit=2)
    crash_at(app, {"items": list(range(6))}, effect, seed=effect)
    kept = {int(row.partition("#")[2]) for row in rows(store) if ":each#" in row}
    before = list(calls.made)
    result = call.invoke(app, {"items": list(range(6))})
    assert result["done"] == in_order(6)
    again = calls.made[len(before) :]
    assert not kept & set(again)
    assert set(before) | set(again) == set(range(6))


def test_a_failing_item_leaves_the_results_of_the_others(
    call: Caller, store: Store, paint: Paint
) -> None:
    calls, broken = Calls(), {3}

    def each(state: Any) -> dict[str, Any]:
        calls(state["item"])
        if state["item"] in broken:
            raise ValueError("no")
        return told(state)

    app = mapped(paint(each), store)
    error = call.fails(app, {"items": list(range(6))})
    assert error.node == "each"
    assert error.state["item"] == 3
    broken.clear()
    assert call.resume(app)["done"] == in_order(6)
    assert [calls.count(number) for number in range(6)] == [1, 1, 1, 2, 1, 1]


KILLED = """
    import os, sys
    from typing import Annotated, TypedDict
    from milecastle import END, START, ExecutionOptions, StateGraph, append

    class Work(TypedDict, total=False):
        items: list[int]
        done: Annotated[list[int], append]

    def each(state):
        with open(sys.argv[2], "a") as file:
            file.write(f"{state['item']}\\n")
        if state["item"] == 30 and sys.argv[3] == "die":
            os._exit(9)
        return {"done": [state["item"]]}

    graph = StateGraph(Work)
    graph.add_node("start", lambda state: None)
    graph.add_node("each", each)
    graph.add_edge(START, "start")
    graph.map("start", "each", over="items", item="item")
    graph.add_edge("each", END)
    app = graph.compile(store="sqlite:///" + sys.argv[1])
    options = ExecutionOptions(max_parallel=4)
    print(app.invoke({"items": list(range(60))}, "t", options=options)["done"] == list(range(60)))
"""


def test_a_process_that_dies_in_a_fan_out_repeats_at_most_what_was_in_flight(
    tmp_path: Path,
) -> None:
    script, log = tmp_path / "fan_out.py", tmp_path / "log"
    script.write_text(dedent(KILLED))
    for end, code in (("die", 9), ("live", 0)):
        command = [sys.executable, str(script), str(tmp_path / "s.db"), str(log), end]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert done.stdout == "True\n"
    made = [int(line) for line in log.read_text().split()]
    assert set(made) == set(range(60))
    repeated = [number for number in range(60) if made.count(number) > 1]
    assert 30 in repeated
    assert len(repeated) <= 2 * 4  # four that run, and what ended since the last commit


@pytest.mark.requirement("G7", api="StateGraph.map")
def test_empty_list_continues_as_if_the_node_had_run(call: Caller, store: Store) -> None:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("start", of_state(lambda state: None))
    graph.add_node("each", told)
    graph.add_node("join", of_state(lambda state: {"last": "joined"}))
    graph.add_edge(START, "start")
    graph.map("start", "each", over="items", item="item")
    graph.add_edges("each", "join", END)
    app = graph.compile(store=store)
    result = call.invoke(app, {"items": []})
    assert (result["last"], result.nodes) == ("joined", ("join",))
    assert result.state.get("done", []) == []
    assert call.invoke(app, {"items": [0]}, "other")["done"] == in_order(1)


def test_a_map_may_begin_the_graph(call: Caller, store: Store) -> None:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("each", told)
    graph.map(START, "each", over=lambda state: state.get("items", [])[:2], item="item")
    graph.add_edge("each", END)
    app = graph.compile(store=store)
    assert call.invoke(app, {"items": [0, 1, 2]})["done"] == in_order(2)


@pytest.mark.requirement("G7", api="Send")
def test_sends_to_several_nodes_run_beside_plain_targets(
    call: Caller, store: Store, paint: Paint
) -> None:
    def tell(name: str) -> Any:
        def node(state: Any) -> dict[str, Any]:
            return {"done": [f"{name} {state.get('item', '-')}"]}

        return paint(node)

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("start", of_state(lambda state: None))
    for name in ("a", "b", "c"):
        graph.add_node(name, tell(name))
        graph.add_edge(name, END)
    graph.add_edge(START, "start")

    def spread(state: Any) -> list[str | Send]:
        return [Send("b", {"item": 1}), "c", Send("a", {"item": 2}), Send("b", {"item": 3}), "b"]

    graph.add_conditional_edges("start", spread, ["a", "b", "c"])
    app = graph.compile(store=store)
    result = call.invoke(app, {})
    assert sorted(result["done"]) == ["a 2", "b -", "b 1", "b 3", "c -"]
    assert result["done"][0] == "a 2"
    assert result["done"][-1] == "c -"
    assert result["done"].index("b 1") < result["done"].index("b 3")


@pytest.mark.parametrize("as_command", [False, True])
@pytest.mark.requirement("G7", api="Send")
def test_a_node_may_send(call: Caller, store: Store, paint: Paint, as_command: bool) -> None:
    def spread(state: Any) -> Any:
        sends = [Send("each", {"item": number}) for number in state["items"]]
        return leading(sends, {"last": "sent"}) if as_command else sends

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("spread", paint(spread), goto=["each"])
    graph.add_node("each", paint(told))
    graph.add_edge(START, "spread")
    graph.add_edge("each", END)
    app = graph.compile(store=store)
    result = call.invoke(app, {"items": [0, 1, 2]})
    assert result["done"] == in_order(3)
    assert result.state.get("last") == ("sent" if as_command else None)


def test_what_items_send_on_keeps_the_order_of_the_items(
    call: Caller, store: Store, paint: Paint
) -> None:
    def first(state: Any) -> Command[Any]:
        time.sleep(0.004 * (4 - state["item"]))
        return Command(goto=Send("second", {"item": state["item"]}))

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("first", paint(first), goto=["second"])
    graph.add_node("second", told)
    graph.map(START, "first", over="items", item="item")
    graph.add_edge("second", END)
    app = graph.compile(store=store)
    assert call.invoke(app, {"items": [0, 1, 2, 3]})["done"] == in_order(4)


def test_items_that_write_one_key_without_a_reducer_are_refused(call: Caller, store: Store) -> None:
    app = mapped(of_state(lambda state: {"last": "me"}), store)
    with pytest.raises(InvalidUpdate, match="reducer"):
        call.invoke(app, {"items": [0, 1]})
    assert app.state("t").status == "failed"


@pytest.mark.parametrize("update", [5, "text", ["a"]])
def test_a_send_without_a_dict_is_refused(call: Caller, update: Any) -> None:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("each", told)
    graph.add_conditional_edges(START, lambda state: [Send("each", update)], ["each"])
    graph.add_edge("each", END)
    with pytest.raises(RoutingError, match="takes a dict"):
        call.invoke(graph.compile(store=MemoryStore()), {})


@dataclass
class Typed:
    items: list[int] = field(default_factory=list[int])
    item: int = -1
    done: Annotated[list[str], append] = field(default_factory=list[str])


def test_a_dataclass_state_takes_items_into_its_own_fields_only(call: Caller, store: Store) -> None:
    def each(state: Typed) -> dict[str, Any]:
        return {"done": [f"item {state.item}"]}

    graph: StateGraph[Typed] = StateGraph(Typed)
    graph.add_node("each", each)
    graph.map(START, "each", over="items", item="item")
    graph.add_edge("each", END)
    result = call.invoke(graph.compile(store=store), {"items": [0, 1]})
    assert result.state.done == in_order(2)
    assert result.state.item == -1

    other: StateGraph[Typed] = StateGraph(Typed)
    other.add_node("each", each)
    other.map(START, "each", over="items", item="thing")
    other.add_edge("each", END)
    with pytest.raises(RoutingError, match="'thing'"):
        call.invoke(other.compile(store=store), {"items": [0]}, "other")


def test_a_fan_out_may_follow_a_fan_out(call: Caller, store: Store) -> None:
    def pair(state: Any) -> dict[str, Any]:
        return {"done": [f"{state['left']}{state['right']}"]}

    def spread(state: Any) -> Any:
        return [Send("pair", {"left": state["item"], "right": right}) for right in "ab"]

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("spread", spread, goto=["pair"])
    graph.add_node("pair", pair)
    graph.map(START, "spread", over="items", item="item")
    graph.add_edge("pair", END)
    result = call.invoke(graph.compile(store=store), {"items": [0, 1]})
    assert result["done"] == ["0a", "0b", "1a", "1b"]


def test_the_rows_of_a_fan_out_are_not_in_the_log(call: Caller) -> None:
    store = MemoryStore()
    call.invoke(mapped(told, store), {"items": list(range(200))})
    assert len(list(store.history(KEY))) == 3


def test_all_failures_of_a_fan_out_are_recorded(call: Caller, store: Store, paint: Paint) -> None:
    """One of three was; a resume runs these three again."""
    ran: list[int] = []

    def work(state: Any) -> dict[str, Any]:
        ran.append(state["x"])
        if state["x"] % 2 and ran.count(state["x"]) == 1:
            raise ValueError(f"item {state['x']}")
        return {"log": [str(state["x"])]}

    app = over_items(paint(work), store)
    call.fails(app, {"xs": [0, 1, 2, 3, 5]})
    failure = store.failure(KEY, app.state("t").run_id)
    assert failure is not None
    assert [(one.task, one.node, one.message, one.attempt) for one in failure.tasks] == [
        ("work#1", "work", "item 1", 1),
        ("work#3", "work", "item 3", 1),
        ("work#4", "work", "item 5", 1),
    ]
    assert call.resume(app)["log"] == ["0", "1", "2", "3", "5"]
    assert sorted(ran) == [0, 1, 1, 2, 3, 3, 5, 5]


def test_fallback_is_told_of_every_failed_item(call: Caller, store: Store, paint: Paint) -> None:
    """It was told of the last one."""
    told: list[dict[str, Any]] = []

    def work(state: Any) -> dict[str, Any]:
        if state["x"] % 2:
            raise ValueError(f"item {state['x']}")
        return {"log": [str(state["x"])]}

    def cope(state: Any, ctx: Context) -> None:
        told.append(dict(ctx.failures))

    call.invoke(over_items(paint(work), store, cope=paint(cope)), {"xs": [0, 1, 2, 3]})
    expected = {"work#1": ["ValueError", "item 1"], "work#3": ["ValueError", "item 3"]}
    assert told == [expected]


class Items(TypedDict, total=False):
    xs: list[int]
    x: int
    log: Annotated[list[str], append]


def over_items(work: Any, store: Store, cope: Any = None) -> App[Any]:
    graph: StateGraph[Items] = StateGraph(Items)
    graph.add_node("first", of_state(lambda state: None))
    graph.add_node("work", work, on_error="cope" if cope else None)
    graph.add_edge(START, "first")
    graph.map("first", "work", over="xs", item="x")
    graph.add_edge("work", END)
    if cope:
        graph.add_node("cope", cope)
        graph.add_edge("cope", END)
    return graph.compile(store=store)
