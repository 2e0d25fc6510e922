"""G7: deferred joins: they run when every branch has ended, however long it is."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, Send, StateGraph, Store, append, interrupt
from milecastle.errors import RoutingError
from milecastle.stores.memory import MemoryStore
from milecastle.testing import crash_everywhere
from tests.acceptance.scenarios.calling import Caller, Calls, Paint, ids, of_state, plain


class Trip(TypedDict, total=False):
    n: int
    way: Annotated[list[str], append]


def stop(name: str) -> Any:
    def node(state: Any) -> dict[str, Any]:
        return {"way": [name]}

    return node


def branches(
    store: Store | None, paint: Paint = plain, nodes: dict[str, Any] | None = None
) -> App[Trip]:
    """Branches of one, two and three nodes that meet in a deferred join."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    for name in ("a", "b1", "b2", "c1", "c2", "c3"):
        graph.add_node(name, paint((nodes or {}).get(name, stop(name))))
    graph.add_node("join", paint(stop("join")), defer=True)
    graph.add_edges(START, "a", "join", END)
    graph.add_edges(START, "b1", "b2", "join")
    graph.add_edges(START, "c1", "c2", "c3", "join")
    return graph.compile(store=store)


@pytest.mark.requirement("G7", api="StateGraph.add_node")
def test_a_deferred_join_runs_once_after_branches_of_different_lengths(
    call: Caller, store: Store, paint: Paint
) -> None:
    result = call.invoke(branches(store, paint), {})
    assert result["way"] == ["a", "b1", "c1", "b2", "c2", "c3", "join"]
    assert result.status == "completed"


def test_a_join_that_is_not_deferred_runs_each_time(call: Caller) -> None:
    graph: StateGraph[Trip] = StateGraph(Trip)
    for name in ("a", "b1", "b2", "join"):
        graph.add_node(name, stop(name))
    graph.add_edges(START, "a", "join", END)
    graph.add_edges(START, "b1", "b2", "join")
    assert call.invoke(graph.compile(), {}, "x")["way"].count("join") == 2


@pytest.mark.parametrize("broken", ["b2", "c3"])
def test_a_deferred_join_waits_also_for_a_branch_that_is_resumed(
    call: Caller, store: Store, broken: str
) -> None:
    failing = [True]

    def breaks(state: Any) -> dict[str, Any]:
        if failing:
            raise ValueError("no")
        return {"way": [broken]}

    app = branches(store, nodes={broken: breaks})
    call.fails(app, {})
    failing.clear()
    result = call.resume(app)
    assert sorted(result["way"]) == ["a", "b1", "b2", "c1", "c2", "c3", "join"]
    assert result["way"][-1] == "join"


def test_a_deferred_join_waits_for_a_person(call: Caller, store: Store) -> None:
    def asks(state: Any) -> dict[str, Any]:
        return {"way": [interrupt("go on?", answer=str)]}

    app = branches(store, nodes={"c2": asks})
    result = call.invoke(app, {})
    assert result.status == "interrupted"
    result = call.resume(app, answers={ids(result)["go on?"]: "yes"})
    assert result["way"] == ["a", "b1", "c1", "b2", "yes", "c3", "join"]


def test_a_deferred_join_waits_although_it_was_led_to_beside_a_fan_out(
    call: Caller, store: Store, paint: Paint
) -> None:
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("work", paint(of_state(lambda state: {"way": [f"work {state['item']}"]})))
    graph.add_node("after", paint(stop("after")))
    graph.add_node("join", paint(stop("join")), defer=True)

    def spread(state: Any) -> list[str | Send]:
        return ["join", Send("work", {"item": 1}), Send("work", {"item": 2})]

    graph.add_conditional_edges(START, spread, ["join", "work"])
    graph.add_edges("work", "after", "join", END)
    result = call.invoke(graph.compile(store=store), {})
    assert result["way"] == ["work 1", "work 2", "after", "join"]


def test_a_deferred_join_in_a_loop_runs_once_each_time_round(call: Caller, store: Store) -> None:
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("start", of_state(lambda state: {"n": state["n"] + 1}))
    for name in ("a", "b1", "b2"):
        graph.add_node(name, stop(name))
    graph.add_node("join", stop("join"), defer=True)
    graph.add_edges(START, "start", "a", "join")
    graph.add_edges("start", "b1", "b2", "join")
    graph.add_edge("join", "start", when=lambda state: state.get("n", 0) < 3)
    graph.add_edge("join", END)
    result = call.invoke(graph.compile(store=store), {"n": 0})
    assert result["way"] == ["a", "b1", "b2", "join"] * 3


def test_two_deferred_nodes_run_together_when_nothing_else_is_left(
    call: Caller, store: Store
) -> None:
    graph: StateGraph[Trip] = StateGraph(Trip)
    for name in ("a", "b1", "b2"):
        graph.add_node(name, stop(name))
    graph.add_node("one", stop("one"), defer=True)
    graph.add_node("two", stop("two"), defer=True)
    graph.add_edges(START, "a", "one", END)
    graph.add_edges(START, "b1", "b2", "two", END)
    result = call.invoke(graph.compile(store=store), {})
    assert result["way"] == ["a", "b1", "b2", "one", "two"]


def test_a_deferred_join_behind_a_router_that_raised_is_not_forgotten(
    call: Caller, store: Store
) -> None:
    broken, calls = [True], Calls()

    def router(state: Any) -> str:
        calls("router")
        if broken:
            raise ValueError("no")
        return "c"

    graph: StateGraph[Trip] = StateGraph(Trip)
    for name in ("a", "b", "c"):
        graph.add_node(name, stop(name))
    graph.add_node("join", stop("join"), defer=True)
    graph.add_edges(START, "a", "join", END)
    graph.add_edge(START, "b")
    graph.add_conditional_edges("b", router, ["c"])
    graph.add_edge("c", "join")
    app = graph.compile(store=store)
    call.fails(app, {})
    broken.clear()
    assert call.resume(app)["way"] == ["a", "b", "c", "join"]


def test_a_send_to_a_deferred_node_is_refused(call: Caller) -> None:
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("join", stop("join"), defer=True)
    graph.add_conditional_edges(START, lambda state: [Send("join", {"n": 1})], ["join"])
    graph.add_edge("join", END)
    with pytest.raises(RoutingError, match="deferred"):
        call.invoke(graph.compile(store=MemoryStore()), {})


def test_no_crash_changes_how_a_graph_with_a_deferred_join_ends() -> None:
    report = crash_everywhere(branches(MemoryStore()), {})
    assert not report.mismatches
