"""Edges: fixed ones, predicates in order, and where routers lead."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import pytest

from milecastle import END, START, StateGraph
from milecastle.graph.edges import Router
from milecastle.model.manifest import EdgeInfo
from tests.unit.graph.checking import compiled, function, only_problem

SECOND = second = "b"


if TYPE_CHECKING:
    OnlyTypeCheckersKnow: TypeAlias = "State"


class State(TypedDict):
    n: int


def nothing(state: State) -> None:
    return None


def graph_of(names: str = "abc") -> StateGraph[State]:
    """Nodes that all may end; the first is the entry."""
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, nothing)
    graph.set_entry_point(names[0])
    for name in names[1:]:
        graph.set_exit_point(name)
    return graph


def routed(router: Any, targets: Any = None) -> Router:
    graph = graph_of()
    graph.add_conditional_edges("a", router, targets)
    graph.add_edge("b", "c")
    graph.add_edge("c", "b")
    return compiled(graph).exits["a"].routers[0]


def test_edges_without_a_condition_are_all_taken_each_once() -> None:
    graph = graph_of()
    graph.add_edges("a", "b")
    graph.add_edges("a", "c")
    graph.add_edges("a", "b")
    exits = compiled(graph).exits["a"]
    assert (exits.fixed, exits.branches, exits.routers) == (("b", "c"), (), ())


def test_predicates_keep_their_order_and_the_last_may_always_hold() -> None:
    def large(state: State) -> bool:
        return state["n"] > 9

    async def later(state: State) -> bool:
        return True

    graph = graph_of()
    graph.add_edge("a", "b", when=large)
    graph.add_edge("a", "c", when=later)
    graph.add_edge("a", END)
    app = compiled(graph)
    branches = app.exits["a"].branches
    assert [(b.target, b.when, b.is_async) for b in branches] == [
        ("b", large, False),
        ("c", later, True),
        (END, None, False),
    ]
    assert app.exits["a"].fixed == ()
    assert app.is_async


def test_a_predicate_that_looks_empty_is_still_a_predicate() -> None:
    class Empty:
        def __call__(self, state: State) -> bool:
            return True

        def __len__(self) -> int:
            return 0

    graph = graph_of("ab")
    graph.add_edge("a", "b", when=Empty())
    app = compiled(graph)
    assert len(app.exits["a"].branches) == 1
    assert EdgeInfo("a", "b", "when", "Empty") in app.manifest.edges


def test_targets_may_be_listed_or_mapped() -> None:
    def route(state: State) -> str:
        return str(state)

    assert routed(route, ["b", "c"]).targets == {"b": "b", "c": "c"}
    assert routed(route, {"yes": "b", "no": "c", "end": END}).targets == {
        "yes": "b",
        "no": "c",
        "end": END,
    }
    assert routed(route, iter(["b", "c"])).targets == {"b": "b", "c": "c"}


def literal(state: State) -> Literal["b", "c"]:
    return "b" if state["n"] else "c"


def literal_list(state: State) -> list[Literal["b", "c"]]:
    return [*("b", "c")]


def literal_sequence(state: State) -> Sequence[Literal["b"]] | Literal["c"]:
    return "c"


def literal_tuple(state: State) -> tuple[Literal["b", "c"], ...]:
    return tuple[Literal["b", "c"], ...]()


def literal_beside_unknown(state: OnlyTypeCheckersKnow) -> Literal["b", "c"]:
    return "b"


class LiteralObject:
    def __call__(self, state: State) -> Literal["b", "c"]:
        return "b"


@pytest.mark.parametrize(
    "router",
    [
        literal,
        literal_list,
        literal_sequence,
        literal_tuple,
        literal_beside_unknown,
        LiteralObject(),
        functools.partial(literal),
    ],
)
def test_targets_are_read_from_a_literal_annotation(router: Any) -> None:
    assert sorted(routed(router).targets) == ["b", "c"]


def plain(state: State) -> str:
    if state["n"] > 3:
        return "b"
    return "c" if state["n"] else END


def constant(state: State) -> str:
    return SECOND if state["n"] else "c"


def several(state: State) -> list[str] | str:
    return ["b", "c"] if state["n"] else END


def annotated_with_a_riddle(state: State) -> OnlyTypeCheckersKnow:
    return "b" if state["n"] else "c"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def test_targets_are_read_from_a_router_that_returns_plain_names() -> None:
    assert routed(annotated_with_a_riddle).targets == {"b": "b", "c": "c"}
    assert routed(plain).targets == {"b": "b", "c": "c", END: END}
    assert routed(constant).targets == {"b": "b", "c": "c"}
    assert routed(several).targets == {"b": "b", "c": "c", END: END}
    assert routed(function(lambda state: "b" if state["n"] else "c")).targets == {
        "b": "b",
        "c": "c",
    }


def computed(state: State) -> str:
    return "bc"[state["n"]]


def partly(state: State) -> str:
    return "b" if state["n"] else str(state)


def shadowed(second: State) -> str:
    return second  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def literal_or_more(state: State) -> Literal["b"] | str:  # noqa: PYI051
    return str(state)


def numbers(state: State) -> Literal[1, 2]:
    return 1


@pytest.mark.parametrize("router", [computed, partly, shadowed, literal_or_more, numbers, print])
def test_unknown_targets_must_be_listed(router: Any) -> None:
    graph = graph_of()
    graph.add_edges("a", "b", "c", END)
    graph.add_conditional_edges("a", router)
    assert only_problem(graph).code == "MC123"
    assert routed(router, ["b", "c"]).targets == {"b": "b", "c": "c"}


async def later(state: State) -> Literal["b", "c"]:
    return "b"


class LaterObject:
    async def __call__(self, state: State) -> str:
        return "b"


def test_async_routers_are_recognized() -> None:
    assert routed(later).is_async
    assert routed(LaterObject(), ["b", "c"]).is_async
    assert routed(functools.partial(later), ["b", "c"]).is_async
    assert not routed(literal).is_async
    graph = graph_of()
    graph.add_conditional_edges("a", later)
    assert compiled(graph).is_async


def spread(state: State) -> Any:
    return [name.lower() for name in "BC"]


def test_targets_that_a_router_returns_together_are_reported() -> None:
    assert routed(several).together == (frozenset({"b", "c"}),)
    assert routed(several, {"b": "c", "c": "c", END: END}).together == (frozenset({"c"}),)
    assert routed(literal).together == ()
    assert routed(literal_list).together == (frozenset({"b", "c"}),)
    assert routed(spread, ["b", "c"]).together == (frozenset({"b", "c"}),)


def test_the_manifest_lists_edges_then_routers_each_with_its_kind() -> None:
    graph = graph_of()
    graph.add_conditional_edges(START, plain)
    graph.add_edge("a", "b", when=lambda state: True)
    graph.add_edge("a", "c")
    graph.set_exit_point("b")
    assert compiled(graph).manifest.edges == (
        EdgeInfo(START, "a"),
        EdgeInfo("b", END),
        EdgeInfo("c", END),
        EdgeInfo("a", "b", "when"),
        EdgeInfo("a", "c"),
        EdgeInfo(START, "b", "router", "plain"),
        EdgeInfo(START, "c", "router", "plain"),
        EdgeInfo(START, END, "router", "plain"),
    )
