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
    Send,
    StateGraph,
    Store,
    append,
)
from milecastle.errors import RoutingError
from milecastle.stores.memory import MemoryStore
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


NOWHERE: dict[str, Any] = {
    "name": "nowhere",
    "list": ["c", "nowhere"],
    "Send": Send("nowhere", {"n": 1}),
    "Send to a deferred node": Send("late", {"n": 1}),
}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("target", NOWHERE)
def test_node_that_leads_nowhere_is_repeated_when_it_is_fixed(
    call: Caller, store: Store, paint: Paint, target: str, beside: bool
) -> None:
    """Nothing of its step is stored, so the fixed node runs again; its sibling does not.

    Seen to fail: the step was stored with the target, and no fix of the node could change it.
    """
    where, calls = [NOWHERE[target]], Calls()

    def first(state: Trip) -> Command[Any]:
        calls("first")
        return Command(update={"n": 1}, goto=where[0])

    def other(state: Trip) -> dict[str, Any]:
        calls("other")
        return {"way": ["other"]}

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("first", paint(first), goto=["c", "late"])
    graph.add_node("c", stop("c"))
    graph.add_node("late", stop("late"), defer=True)
    graph.add_edges(START, "first")
    graph.add_edge("c", END)
    graph.add_edge("late", END)
    if beside:
        graph.add_node("other", paint(other))
        graph.add_edges(START, "other", END)
    app = graph.compile(store=store)
    with pytest.raises(RoutingError):
        call.invoke(app, {"n": 0})
    with pytest.raises(RoutingError):
        call.resume(app)
    snapshot = app.state("t")
    assert (snapshot.status, snapshot.state.get("n")) == ("failed", 0)
    where[0] = "c"
    assert call.resume(app)["way"] == [*(["other"] if beside else []), "c"]
    assert (calls.count("first"), calls.count("other")) == (3, int(beside))


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("kind", ["command", "list of sends", "send"])
@pytest.mark.parametrize("held", ["text", 5, None, [("way", "c")]], ids=lambda held: str(held))
def test_send_without_a_dict_is_refused_and_the_fixed_node_runs_again(
    call: Caller, kind: str, held: Any, beside: bool
) -> None:
    """Broken on purpose: ``_targets`` checks nothing; a ``ValueError`` of ``dict()`` was raised."""
    send = Send("c", held)
    returned: list[Any] = [
        {"command": Command(goto=[send]), "list of sends": [send], "send": send}[kind],
        leading("c"),
    ]
    refused_then_fixed(call, returned, beside, "holds")


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("target", [5, None, ("c", 1), ["c"], leading("c")])
def test_target_that_is_neither_name_nor_send_is_refused_and_the_fixed_node_runs_again(
    call: Caller, target: Any, beside: bool
) -> None:
    """It was stored with the step: each resume raised ``TypeError``, also with the node fixed.

    Broken on purpose: ``_targets`` checks nothing.
    """
    refused_then_fixed(call, [Command(goto=["c", target]), leading("c")], beside, "goto= holds")


def refused_then_fixed(call: Caller, returned: list[Any], beside: bool, match: str) -> None:
    """A node returns what cannot be followed, and after that what can."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("first", of_state(lambda state: returned.pop(0)), goto=["c"])
    graph.add_node("c", stop("c"))
    graph.add_edge(START, "first")
    graph.add_edge("c", END)
    if beside:
        graph.add_node("b", stop("b"))
        graph.add_edges(START, "b", END)
    app = graph.compile(store=MemoryStore())
    with pytest.raises(InvalidUpdate, match=match):
        call.invoke(app, {})
    assert call.resume(app)["way"] == (["b", "c"] if beside else ["c"])


def test_declared_target_that_is_not_a_node_is_found_when_compiling() -> None:
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


def test_a_loop_that_both_the_node_and_the_router_change_makes_progress(
    call: Caller, store: Store
) -> None:
    """Fails if the change by the router takes back the change by the node."""

    def onward(state: Trip) -> Command[Any]:
        n = state.get("n", 0)
        return Command(update={"n": n + 1}, goto="a" if n < 3 else END)

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", stop("a"))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", onward, ["a", END])
    result = call.invoke(graph.compile(store=store), {"n": 0})
    assert (result["n"], result["way"]) == (4, ["a"] * 4)


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
