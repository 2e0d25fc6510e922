"""Routing: which nodes run next."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle import END, START, Command, StateGraph
from milecastle.engine.routing import Looked, Way, find_next, in_order
from milecastle.errors import RoutingError
from milecastle.graph.structure import CompiledGraph
from tests.unit.engine.by_hand import State, always, say


def hub(*routers: Any, fixed: tuple[str, ...] = (), when: Any = ()) -> CompiledGraph:
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("hub", say)
    for name in ("a", "b", "c"):
        graph.add_node(name, say)
        graph.add_edge(name, END)
        graph.add_edge(START, name)
    graph.add_edge(START, "hub")
    for target in fixed:
        graph.add_edge("hub", target)
    for target, predicate in when:
        graph.add_edge("hub", target, when=predicate)
    for router in routers:
        graph.add_conditional_edges("hub", router, ["a", "b", "c", END])
    return graph.compile().graph


def found(graph: CompiledGraph) -> tuple[list[str], list[Looked]]:
    way = Way()
    with pytest.raises(StopIteration):
        find_next(graph, "hub", {"n": 0, "log": []}, way).send(None)
    return way.names, way.looked


def test_fixed_edges_are_all_taken() -> None:
    assert found(hub(fixed=("b", "a"))) == (
        ["b", "a"],
        [("hub", "b", True), ("hub", "a", True)],
    )


def test_the_first_predicate_that_holds_is_taken() -> None:
    graph = hub(when=[("a", always(0)), ("b", always("yes")), ("c", None)])
    assert found(graph) == (["b"], [("hub", "a", False), ("hub", "b", True)])


def test_routers_add_to_the_edges() -> None:
    graph = hub(always("c"), always(["a", END]), fixed=("b",))
    assert found(graph)[0] == ["b", "c", "a", END]


def test_no_way_on_is_an_error() -> None:
    with pytest.raises(RoutingError, match="none of its predicates is true"):
        next(find_next(hub(when=[("a", always(False))]), "hub", {}, Way()))


def test_nodes_come_in_the_order_of_declaration_each_once() -> None:
    graph = hub(fixed=("a",))
    assert in_order(graph, ["c", "a", "c", END]) == ("a", "c")
    assert in_order(graph, [END]) == ()
    assert in_order(graph, ["b"]) == ("b",)
    assert in_order(graph, [END, END]) == ()


def test_a_router_may_return_a_command_without_an_update() -> None:
    """Fails if nothing is taken for an update, or the targets are not followed."""
    way = Way()
    graph = hub(always(Command(goto=["a", "c"])))
    with pytest.raises(StopIteration):
        find_next(graph, "hub", {"n": 0, "log": []}, way).send(None)
    assert (way.names, way.updates) == (["a", "c"], [])


def test_a_node_that_routes_by_command_may_return_none() -> None:
    """Then it ends there. Fails if a node without edges has to name the next."""
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("hub", say, goto=["a"])
    graph.add_node("a", say)
    graph.add_edge(START, "hub")
    graph.add_edge("a", END)
    assert found(graph.compile().graph) == ([], [])
