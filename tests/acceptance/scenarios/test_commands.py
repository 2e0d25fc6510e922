"""G7: `Command(update=, goto=)` from nodes and routers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Command,
    DefinitionError,
    ExecutionError,
    InvalidUpdate,
    RoutingError,
    Send,
    StateGraph,
    Store,
    append,
)
from tests.acceptance.running import always
from tests.acceptance.scenarios.calling import Caller, Calls, Paint, leading, of_state


class Trip(TypedDict, total=False):
    n: int
    way: Annotated[list[str], append]


def stop(name: str) -> Any:
    def node(state: Any) -> dict[str, Any]:
        return {"way": [name]}

    return node


def trip(first: Any, store: Store | None, **policy: Any) -> App[Trip]:
    """first -> b by its edge; c is where only a command leads."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("first", first, **policy)
    graph.add_node("b", stop("b"))
    graph.add_node("c", stop("c"))
    graph.add_edges(START, "first", "b", END)
    graph.add_edge("c", END)
    return graph.compile(store=store)


@pytest.mark.parametrize(
    ("goto", "way"),
    [("c", ["c"]), (["b", "c"], ["b", "c"]), ((), ["b"]), ([Send("c", {"n": 1})], ["c"])],
)
@pytest.mark.requirement("G2", api="Command")
def test_where_a_command_leads_takes_the_place_of_the_edges(
    call: Caller, store: Store, paint: Paint, goto: Any, way: list[str]
) -> None:
    app = trip(paint(of_state(lambda state: leading(goto, {"n": 7}))), store, goto=["c"])
    result = call.invoke(app, {"n": 0})
    assert (result["n"], result["way"]) == (7, way)


def test_a_command_without_an_update_leaves_the_state(call: Caller, store: Store) -> None:
    app = trip(of_state(lambda state: leading("c")), store, goto=["c"])
    assert call.invoke(app, {"n": 3}).state == {"n": 3, "way": ["c"]}


def test_an_annotation_declares_where_a_command_leads(call: Caller, store: Store) -> None:
    def first(state: Trip) -> Command[Literal["c"]]:
        return Command(goto="c")

    assert call.invoke(trip(first, store), {})["way"] == ["c"]


def test_a_target_that_was_not_declared_is_refused_and_nothing_is_skipped(
    call: Caller, store: Store, paint: Paint
) -> None:
    where, calls = ["nowhere"], Calls()

    def first(state: Trip) -> Command[Any]:
        calls("first")
        return Command(update={"n": 1}, goto=where[0])

    app = trip(paint(first), store, goto=["c"])
    with pytest.raises(RoutingError, match="did not declare"):
        call.invoke(app, {"n": 0})
    assert app.state("t").status == "failed"
    assert app.state("t").state.get("n") == 1
    with pytest.raises(RoutingError, match="did not declare"):
        call.resume(app)
    assert calls.count("first") == 1


def test_a_declared_target_that_is_no_node_is_found_when_compiling() -> None:
    with pytest.raises(DefinitionError, match="MC110"):
        trip(stop("first"), None, goto=["c", "nowhere"])


def test_a_command_with_an_update_that_does_not_fit_is_refused(call: Caller, store: Store) -> None:
    app = trip(of_state(lambda state: leading("c", {"typo": 1})), store, goto=["c"])
    with pytest.raises(InvalidUpdate, match="typo"):
        call.invoke(app, {})


def routed(router: Any, store: Store | None, targets: Any = ("b", "c", END)) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", stop("a"))
    graph.add_node("b", stop("b"))
    graph.add_node("c", stop("c"))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", router, list(targets))
    graph.add_edge("b", END)
    graph.add_edge("c", END)
    return graph.compile(store=store)


@pytest.mark.parametrize(
    ("goto", "way"),
    [("c", ["a", "c"]), (["c", Send("b", {"n": 5})], ["a", "b", "c"]), (END, ["a"])],
)
@pytest.mark.requirement("G2", api="Command")
def test_a_router_may_answer_with_a_command(
    call: Caller, store: Store, paint: Paint, goto: Any, way: list[str]
) -> None:
    app = routed(paint(of_state(lambda state: leading(goto, {"n": 9}))), store)
    result = call.invoke(app, {"n": 0})
    assert (result["n"], result["way"]) == (9, way)
    assert app.state("t").state == result.state


def test_the_command_of_a_router_is_held_to_its_targets(call: Caller, store: Store) -> None:
    where = ["nowhere"]
    app = routed(of_state(lambda state: leading(where[0], {"n": 9})), store)
    with pytest.raises(RoutingError):
        call.invoke(app, {"n": 0})
    assert app.state("t").state.get("n") == 0


def test_the_update_of_a_router_that_raised_is_applied_once(call: Caller, store: Store) -> None:
    broken = [True]

    def router(state: Trip) -> Command[Any]:
        if broken:
            raise ValueError("no")
        return Command(update={"way": ["routed"]}, goto="c")

    app = routed(router, store)
    call.fails(app, {"n": 0})
    broken.clear()
    assert call.resume(app)["way"] == ["a", "routed", "c"]


def test_a_loop_in_which_only_the_router_changes_the_state_makes_progress(
    call: Caller, store: Store
) -> None:
    def onward(state: Trip) -> Command[Any]:
        n = state.get("n", 0)
        return Command(update={"n": n + 1}, goto="a" if n < 3 else END)

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", of_state(lambda state: None))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", onward, ["a", END])
    assert call.invoke(graph.compile(store=store), {"n": 0})["n"] == 4


def test_commands_of_several_nodes_in_one_step_are_all_followed(call: Caller, store: Store) -> None:
    graph: StateGraph[Trip] = StateGraph(Trip)
    for name, goto in (("a", "x"), ("b", "y"), ("c", "x")):
        graph.add_node(name, always(leading(goto)), goto=[goto])
        graph.add_edge(START, name)
    graph.add_node("x", stop("x"))
    graph.add_node("y", stop("y"))
    graph.add_edge("x", END)
    graph.add_edge("y", END)
    assert call.invoke(graph.compile(store=store), {})["way"] == ["x", "y"]


def test_a_command_beside_a_router_that_raised_is_not_lost(call: Caller, store: Store) -> None:
    broken = [True]

    def router(state: Trip) -> str:
        if broken:
            raise ValueError("no")
        return "y"

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", of_state(lambda state: leading(Send("x", {"n": 4}))), goto=["x"])
    graph.add_node("b", of_state(lambda state: None))
    graph.add_node("x", of_state(lambda state: {"way": [f"x{state['n']}"]}))
    graph.add_node("y", stop("y"))
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    graph.add_conditional_edges("b", router, ["y"])
    graph.add_edge("x", END)
    graph.add_edge("y", END)
    app = graph.compile(store=store)
    with pytest.raises(ExecutionError):
        call.invoke(app, {"n": 0})
    broken.clear()
    assert call.resume(app)["way"] == ["x4", "y"]


def test_without_a_store_commands_work_as_well(call: Caller) -> None:
    app = trip(of_state(lambda state: leading("c")), None, goto=["c"])
    assert call.invoke(app, {}, thread=None)["way"] == ["c"]
