"""Validation: each code where it belongs, on the right line, with advice; nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast

import pytest

from milecastle import END, START, DefinitionError, StateGraph, append, renamed_from
from milecastle.errors import Place, Problem
from milecastle.graph import validation
from tests.unit.graph.checking import compiled, function, here, line_of, only_problem, problems


class State(TypedDict):
    topic: str
    notes: Annotated[list[str], append]


def nothing(state: State) -> None:
    return None


def chain(*names: str) -> StateGraph[State]:
    """A legal graph: the names one after the other."""
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, nothing)
    graph.add_edges(START, *names, END)
    return graph


def fan(one: Any, other: Any, state: Any = State) -> StateGraph[Any]:
    """Two nodes in parallel."""
    graph = StateGraph(state)
    for node in (one, other):
        graph.add_node(node)
        graph.add_edges(START, node.__name__, END)
    return graph


def check(problem: Problem, code: str, line: int, message: str, suggestion: str) -> None:
    assert problem.code == code
    assert problem.place == Place(__file__, line)
    assert message in problem.message
    assert suggestion in problem.suggestion


def test_a_legal_graph_has_no_problems() -> None:
    assert list(compiled(chain("a", "b")).nodes) == ["a", "b"]


def test_mc110_an_edge_names_an_unknown_node() -> None:
    graph = chain("research", "review")
    graph.add_edge("reserch", "review")
    check(
        only_problem(graph),
        "MC110",
        here() - 4,
        "an edge names 'reserch', which is not a node",
        "did you mean 'research'?",
    )


def test_mc110_an_unlike_name_is_not_guessed() -> None:
    graph = chain("a")
    graph.add_edge("a", "somewhere")
    assert only_problem(graph).suggestion == "add a node named 'somewhere'"


def test_mc110_a_router_names_an_unknown_node() -> None:
    graph = chain("research", "review")
    graph.add_conditional_edges("research", lambda state: str(state), {"x": "revue", "y": "review"})
    line = here() - 1
    message = "the router '<lambda>' names 'revue', which is not a node"
    check(only_problem(graph), "MC110", line, message, "did you mean 'review'?")
    graph = chain("a")
    graph.add_conditional_edges("b", nothing, ["a"])
    assert "names 'b'" in only_problem(graph).message


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
def test_mc110_an_interrupt_names_an_unknown_node(when: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        chain("review").compile(**cast("Any", {when: ["revew", "review", START]}))
    line = here() - 1
    misspelt, start = caught.value.problems
    check(misspelt, "MC110", line, "an interrupt names 'revew'", "did you mean 'review'?")
    check(start, "MC110", line, "an interrupt names '__start__'", "name a node of this graph")
    compiled(chain("review"), **{when: ["review"]})


def test_mc111_a_node_that_nothing_leads_to() -> None:
    graph = chain("a")

    @graph.node
    def lonely(state: State) -> None: ...

    graph.add_edge("lonely", END)
    message = "node 'lonely' is unreachable"
    check(only_problem(graph), "MC111", line_of(lonely), message, "add an edge to 'lonely'")


def test_mc111_an_island_is_unreachable_though_it_has_edges() -> None:
    graph = chain("a")
    graph.add_node("b", nothing)
    graph.add_node("c", nothing)
    graph.add_edges("b", "c", "b", END)
    assert [problem.code for problem in problems(graph)] == ["MC111", "MC111"]


def test_mc112_a_node_from_which_no_way_leads_to_an_end() -> None:
    graph = chain("a")

    @graph.node
    def stuck(state: State) -> None: ...

    graph.add_edge("a", "stuck")
    message = "node 'stuck' cannot reach END"
    check(only_problem(graph), "MC112", line_of(stuck), message, "an edge from 'stuck' to END")
    graph.add_edge("stuck", "stuck")
    assert only_problem(graph).code == "MC112"
    graph.add_edge("stuck", "a")
    compiled(graph)


def test_mc113_two_nodes_with_one_name() -> None:
    graph = chain("a")
    graph.add_node("b", nothing)
    first = here() - 1
    graph.add_node("b", nothing)
    graph.add_edges("a", "b", END)
    message = f"two nodes are named 'b'; the other is at {__file__}:{first}"
    check(only_problem(graph), "MC113", first + 2, message, "give one of them another name")


def routes_wrong(state: State) -> str:
    if state["notes"]:
        return "b"
    return "nowhere"


def routes_right(state: State) -> str:
    return "b" if state["notes"] else END


def test_mc114_a_router_returns_what_it_did_not_declare() -> None:
    graph = chain("a", "b")
    graph.add_conditional_edges("a", routes_wrong, ["b", END])
    message = "the router 'routes_wrong' of 'a' returns 'nowhere', which is not one of its targets"
    line = line_of(routes_wrong, 3)
    check(only_problem(graph), "MC114", line, message, "add 'nowhere' to its targets")
    graph = chain("a", "b")
    graph.add_conditional_edges("a", routes_right, ["b", END])
    compiled(graph)


def annotated(state: State) -> Literal["review"]:
    return "revie"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def test_mc114_an_annotation_is_a_declaration() -> None:
    graph = chain("research", "review")
    graph.add_conditional_edges("research", annotated)
    check(only_problem(graph), "MC114", line_of(annotated, 1), "'revie'", "did you mean 'review'?")


def test_mc114_what_is_returned_is_looked_up_in_a_mapping() -> None:
    graph = chain("a", "b")
    graph.add_conditional_edges("a", routes_wrong, {"b": "b", "nowhere": END})
    compiled(graph)


def returns_unknown_key(state: State) -> Any:
    if state["topic"]:
        return {"topic": ""}
    return {
        "topic": "",
        "tpic": "",
    }


def test_mc115_a_node_returns_a_key_that_the_state_does_not_have() -> None:
    graph = StateGraph(State)
    graph.add_node("a", returns_unknown_key)
    graph.add_edges(START, "a", END)
    message = "node 'a' returns 'tpic', which the state does not have"
    line = line_of(returns_unknown_key, 5)
    check(only_problem(graph), "MC115", line, message, "did you mean 'topic'?")


def test_mc115_an_unlike_key_is_not_guessed() -> None:
    graph = StateGraph(State)
    graph.add_node("a", function(lambda state: {"zzz": 1}))
    graph.add_edges(START, "a", END)
    assert only_problem(graph).suggestion == "declare 'zzz' in the state"


def writes_topic(state: State) -> Any:
    return {"topic": "a", "notes": ["a"]}


def writes_topic_too(state: State) -> Any:
    return {"topic": "b", "notes": ["b"]}


def writes_notes(state: State) -> Any:
    return {"notes": ["c"]}


def test_mc116_two_parallel_writers_of_a_channel_without_a_reducer() -> None:
    graph = StateGraph(State)
    graph.add_node(writes_topic)
    line = here() - 1
    graph.add_node(writes_topic_too)
    graph.add_edges(START, "writes_topic", END)
    graph.add_edges(START, "writes_topic_too", END)
    message = (
        "node 'writes_topic' may run in the same step as 'writes_topic_too', and both write "
        "'topic', which has no reducer"
    )
    check(only_problem(graph), "MC116", line, message, "annotate 'topic' with a reducer")


def test_mc116_a_reducer_makes_it_legal_and_so_does_one_after_the_other() -> None:
    compiled(fan(writes_topic, writes_notes))
    graph = StateGraph(State)
    graph.add_node(writes_topic)
    graph.add_node(writes_topic_too)
    graph.add_edges(START, "writes_topic", "writes_topic_too", END)
    compiled(graph)


def last_of_my_own(old: str, update: str) -> str:
    return update


last_of_my_own.__qualname__ = "last"


def test_mc116_a_users_own_reducer_counts_whatever_its_name() -> None:
    class Own(TypedDict):
        topic: Annotated[str, last_of_my_own]
        notes: Annotated[list[str], append]

    compiled(fan(writes_topic, writes_topic_too, Own))


def test_mc116_names_everybody_in_a_wide_fan() -> None:
    graph = StateGraph(State)
    for name in "abcdef":
        graph.add_node(name, writes_topic)
        graph.add_edges(START, name, END)
    problem = only_problem(graph)
    assert (
        "node 'a' may run in the same step as 'b', 'c', 'd' and 2 more, and all" in problem.message
    )


def test_mc116_a_router_that_chooses_one_brings_nobody_together() -> None:
    def choose(state: State) -> Any:
        return ["a"] if state["topic"] else ["b"]

    def spread(state: State) -> Any:
        return ["a", "b"]

    for router, legal in ((choose, True), (spread, False)):
        graph = StateGraph(State)
        graph.add_node("a", writes_topic)
        graph.add_node("b", writes_topic_too)
        graph.add_conditional_edges(START, router)
        graph.add_edges("a", END)
        graph.add_edges("b", END)
        if legal:
            compiled(graph)
        else:
            assert only_problem(graph).code == "MC116"


def test_mc117_no_entry_point() -> None:
    graph = StateGraph(State)
    line = here() - 1
    graph.add_node("a", nothing)
    graph.add_edge("a", END)
    message = "the graph has no entry point"
    check(only_problem(graph), "MC117", line, message, "add an edge from START")
    graph.add_conditional_edges(START, lambda state: "a")
    compiled(graph)


def yields(state: State) -> Any:
    yield state


def asks(state: State, database: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("wrong", "message", "suggestion"),
    [
        (yields, "is a generator", "write return instead of yield"),
        (
            asks,
            "the parameter 'database', which milecastle does not supply",
            "a node may have state",
        ),
        (5, "is a int, not a function", "pass the function itself"),
    ],
)
def test_mc118_a_function_that_cannot_be_a_node(wrong: Any, message: str, suggestion: str) -> None:
    graph = chain("a")
    graph.add_node("b", wrong)
    line = here() - 1
    graph.add_edges("a", "b", END)
    check(only_problem(graph), "MC118", line, message, suggestion)


def test_mc119_an_edge_that_is_never_tried() -> None:
    graph = chain("a")
    graph.add_node("b", nothing)
    graph.add_edge("b", END)
    graph.add_edge("a", "b", when=lambda state: True)
    line = here() - 1
    message = (
        "the edge from 'a' to 'b' is never taken: the edge to '__end__' before it always matches"
    )
    check(only_problem(graph), "MC119", line, message, "without a predicate to the end")


def test_mc119_a_fallback_at_the_end_is_what_it_is_for() -> None:
    graph = StateGraph(State)
    graph.add_node("a", nothing)
    graph.add_edge(START, "a")
    graph.add_edge("a", "a", when=lambda state: True)
    graph.add_edge("a", END)
    compiled(graph)


def test_mc120_a_class_that_cannot_be_a_state() -> None:
    graph = StateGraph(cast("type[Any]", dict))
    line = here() - 1
    graph.add_node("a", writes_topic)
    graph.add_edges(START, "a", END)
    message = "dict is not a TypedDict"
    check(only_problem(graph), "MC120", line, message, "declare the state as a TypedDict")


@pytest.mark.parametrize("name", ["", START, END, "lone \ud800 surrogate"])
def test_mc121_a_name_that_a_node_cannot_have(name: str) -> None:
    graph = chain("a")
    graph.add_node(name, nothing)
    line = here() - 1
    check(only_problem(graph), "MC121", line, "a node cannot be named", "give it a name")


def test_mc122_an_edge_into_start_or_out_of_end() -> None:
    graph = chain("a")
    graph.add_edge("a", START)
    graph.add_edge(END, "a")
    line = here() - 1
    into, out = problems(graph)
    check(into, "MC122", line - 1, "an edge points to START", "point it to the first node")
    check(out, "MC122", line, "an edge starts at END", "END is the last node")


def test_mc122_a_router_into_start() -> None:
    graph = chain("a")
    graph.add_conditional_edges("a", lambda state: str(state), [START, END])
    assert only_problem(graph).code == "MC122"
    graph = chain("a")
    graph.add_conditional_edges(END, lambda state: str(state), ["a"])
    assert only_problem(graph).code == "MC122"


def routes_anywhere(state: State) -> str:
    return "b" if state["notes"] else str(state)


def test_mc123_a_router_whose_targets_are_not_known() -> None:
    graph = StateGraph(State)
    graph.add_node("a", nothing)
    graph.add_node("b", nothing)
    graph.add_edges(START, "a")
    graph.add_edges("b", END)
    graph.add_conditional_edges("a", routes_anywhere)
    line = here() - 1
    message = "the router 'routes_anywhere' of 'a' does not declare its targets"
    check(only_problem(graph), "MC123", line, message, "list its targets as the third argument")


def test_mc123_an_empty_list_of_targets_leads_nowhere() -> None:
    graph = chain("a")
    graph.add_conditional_edges("a", nothing, [])
    assert only_problem(graph).code == "MC123"


class Other(TypedDict):
    else_where: str


def child_of(state: type) -> Any:
    graph: StateGraph[Any] = StateGraph(state)
    graph.add_node("inner", nothing)
    graph.add_edges(START, "inner", END)
    return graph.compile()


def test_mc124_a_subgraph_that_shares_no_key() -> None:
    graph = StateGraph(State)
    graph.add_node("child", child_of(Other))
    line = here() - 1
    graph.add_edges(START, "child", END)
    message = "the state of the subgraph 'child' shares no key with the state of this graph"
    check(only_problem(graph), "MC124", line, message, "give= and take=")


def test_mc124_a_subgraph_has_no_timeout() -> None:
    graph = StateGraph(State)
    graph.add_node("child", child_of(State), timeout=5)
    line = here() - 1
    graph.add_edges(START, "child", END)
    message = "the subgraph 'child' has a timeout"
    check(only_problem(graph), "MC124", line, message, "on the nodes inside it")


def joined(old: str, new: str) -> str:
    return f"{old}{new}"


class Mine(TypedDict):
    topic: Annotated[str, joined]


def test_mc124_a_subgraph_whose_addition_is_unknown() -> None:
    graph: StateGraph[Any] = StateGraph(Mine)
    graph.add_node("child", child_of(State))
    graph.add_edges(START, "child", END)
    problem = only_problem(graph)
    assert problem.code == "MC124"
    assert "which has a custom reducer" in problem.message


def test_mc124_give_and_take_lead_into_any_subgraph() -> None:
    graph: StateGraph[Any] = StateGraph(Mine)
    graph.add_node("child", child_of(Other), give=nothing, take=nothing)
    graph.add_edges(START, "child", END)
    assert list(compiled(graph).nodes) == ["child"]


def test_mc118_give_is_for_subgraphs_only() -> None:
    graph = StateGraph(State)
    graph.add_node("a", nothing, give=nothing)
    graph.add_edges(START, "a", END)
    assert only_problem(graph).code == "MC118"


def test_mc125_a_key_with_a_name_that_is_kept_for_other_things() -> None:
    kept: Any = TypedDict("kept", {"__sends__": str})
    graph: StateGraph[Any] = StateGraph(kept)
    graph.add_node("a", nothing)
    graph.add_edges(START, "a", END)
    assert only_problem(graph).code == "MC125"


def test_mc126_a_graph_over_files_that_fans_out(tmp_path: Path) -> None:
    """Fails if ``compile()`` does not look at declared files of a graph that fans out."""
    graph = StateGraph(State)
    graph.add_node("a", nothing, outputs=["made.txt"])
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: END, [END])
    with pytest.raises(DefinitionError) as caught:
        graph.compile(workspace=tmp_path / "work")
    assert [problem.code for problem in caught.value.problems] == ["MC126"]
    assert "declare a node for each item" in caught.value.problems[0].message


def test_mc127_a_declared_input_that_the_state_does_not_have() -> None:
    class Asked(TypedDict):
        topik: str

    graph = StateGraph(State, input=Asked)
    graph.add_node("a", nothing)
    graph.add_edges(START, "a", END)
    with pytest.raises(DefinitionError) as caught:
        graph.compile()
    assert [problem.code for problem in caught.value.problems] == ["MC127"]


def test_mc128_two_with_one_former_name() -> None:
    """Was broken: the graph was compiled, and the last one got what was stored."""

    class Twice(TypedDict):
        one: Annotated[str, renamed_from("old", "older")]
        two: Annotated[str, renamed_from("old")]

    def passing(state: Twice) -> dict[str, Any]:
        return {}

    graph: StateGraph[Twice] = StateGraph(Twice)
    graph.add_node("a", passing, renamed_from="x")
    graph.add_node("b", passing, renamed_from=("x", "a"))
    graph.add_edges(START, "a", "b", END)
    with pytest.raises(DefinitionError) as caught:
        graph.compile()
    found = [(problem.code, problem.message) for problem in caught.value.problems]
    assert sorted(found) == [
        ("MC128", "the keys 'one' and 'two' are both renamed from 'old'"),
        ("MC128", "the nodes 'a' and 'b' are both renamed from 'x'"),
    ]


def test_every_code_of_the_table_is_tested_here() -> None:
    table = [line.split()[0] for line in (validation.__doc__ or "").splitlines() if "MC1" in line]
    tests = " ".join(name for name in globals() if name.startswith("test_mc"))
    assert table == [f"MC{number}" for number in range(110, 129)]
    assert [code for code in table if f"test_{code.lower()}_" not in tests] == []
