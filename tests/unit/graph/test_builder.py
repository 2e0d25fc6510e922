"""The builder: declarations, what they are called, and where they were written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypedDict, cast

import pytest

import milecastle.graph
from milecastle import END, START, Command, ExecutionConfig, StateGraph
from milecastle.graph.structure import Declared
from tests.unit.graph.checking import compiled, here


class State(TypedDict):
    n: int


def declared(graph: StateGraph[Any]) -> Declared:
    return graph._declared  # pyright: ignore[reportPrivateUsage]


def step(state: State) -> State:
    return state


def test_a_node_goes_by_its_functions_name_or_by_another() -> None:
    graph = StateGraph(State)

    @graph.node
    def one(state: State) -> None: ...

    @graph.node()
    def two(state: State) -> None: ...

    @graph.node(name="third", version="2", inline=True)
    def three(state: State) -> None: ...

    graph.add_node(step)
    graph.add_node("fifth", step)
    graph.add_node(functools.partial(step))
    names = [node.name for node in declared(graph).nodes]
    assert names == ["one", "two", "third", "step", "fifth", "step"]
    policy = declared(graph).nodes[2].policy
    assert (policy.version, policy.inline) == ("2", True)
    assert [function.__name__ for function in (one, two, three)] == ["one", "two", "three"]


def test_every_declaration_knows_its_line() -> None:
    graph = StateGraph(State)
    built = here() - 1

    @graph.node
    def one(state: State) -> None: ...

    added = here() + 1
    graph.add_node(step)
    graph.add_edge("one", "step")
    graph.add_edges("step", "one")
    graph.set_entry_point("one")
    graph.set_exit_point("step")
    graph.add_conditional_edges("one", lambda state: "step", ["step"])
    found = declared(graph)
    assert (found.place.file, found.place.line) == (__file__, built)
    assert [node.place.line for node in found.nodes] == [one.__code__.co_firstlineno, added]
    lines = [edge.place.line for edge in found.edges if edge.place]
    assert lines == [added + 1, added + 2, added + 3, added + 4]
    assert found.routers[0].place is not None
    assert found.routers[0].place.line == added + 5
    places = [edge.place for edge in found.edges] + [found.routers[0].place]
    assert {place.file for place in places if place} == {__file__}


def test_a_parametrised_graph_knows_its_line_as_well() -> None:
    graph = StateGraph[State](State)
    assert declared(graph).place.line == here() - 1
    assert declared(graph).place.file == __file__


def test_without_a_frame_of_the_user_there_is_still_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("milecastle.graph.functions._is_ours", lambda frame: True)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert declared(StateGraph(State)).place.file.endswith("functions.py")


def test_a_graph_is_named_after_its_state_unless_it_is_given_a_name() -> None:
    assert declared(StateGraph(State)).name == "State"
    assert declared(StateGraph(State, name="demo")).name == "demo"
    assert declared(StateGraph(cast("type[Any]", 5))).name == "graph"


def test_entry_and_exit_points_are_edges_from_start_and_to_end() -> None:
    graph = StateGraph(State)
    graph.add_node(step)
    graph.set_entry_point("step")
    graph.set_exit_point("step")
    exits = compiled(graph).exits
    assert (exits[START].fixed, exits["step"].fixed) == (("step",), (END,))


def test_the_default_config_is_the_graphs() -> None:
    graph = StateGraph(State)
    graph.add_node(step)
    graph.add_edges(START, "step", END)
    graph.with_default_config(ExecutionConfig(max_steps=7))
    assert compiled(graph).config.max_steps == 7


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda graph: graph.add_node("a"), r"add_node\('a'\) needs the node's function"),
    (lambda graph: graph.add_node("a", graph), "node 'a' is a graph: compile it first"),
    (lambda graph: graph.add_node(5, step), "identified by its name, a str, not int"),
    (
        lambda graph: graph.add_node("a", step, version=2),
        "version of a node must be a str, not int",
    ),
    (lambda graph: graph.node("a"), r"write @graph.node\(name='a'\)"),
    (lambda graph: graph.add_edge(step, END), "not function: write 'step'"),
    (lambda graph: graph.add_edge(["a", "b"], END), "add one edge each.*a str, not list$"),
    (lambda graph: graph.add_edge("a", "b", True), "when= takes a function of the state, not"),
    (lambda graph: graph.add_edges("a"), r"add_edges\(\) needs at least two names"),
    (lambda graph: graph.set_exit_point(None), "a str, not NoneType"),
    (lambda graph: graph.add_conditional_edges("a", "b"), "a router must be a function of the"),
    (lambda graph: graph.add_conditional_edges("a", step, [step]), "not function: write"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_what_is_not_a_name_is_refused_at_once(wrong: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        wrong(StateGraph(State))


def test_targets_may_map_from_anything_that_a_router_can_return() -> None:
    graph = StateGraph(State)
    graph.add_conditional_edges("a", step, {True: "b", None: END})
    assert declared(graph).routers[0].targets == {True: "b", None: END}


def test_a_single_target_may_stand_alone() -> None:
    graph = StateGraph(State)
    graph.add_conditional_edges("a", step, "target")
    assert declared(graph).routers[0].targets == {"target": "target"}


def test_what_is_declared_later_does_not_reach_a_compiled_graph() -> None:
    graph = StateGraph(State)
    graph.add_node(step)
    graph.add_edges(START, "step", END)
    before = compiled(graph)
    graph.add_node("later", step)
    graph.add_edges("step", "later", END)
    assert list(before.nodes) == ["step"]
    assert before.exits["step"].fixed == (END,)
    assert list(compiled(graph).nodes) == ["step", "later"]


def run_cell(graph: StateGraph[Any], source: str, cell: int) -> None:
    """Run a notebook cell: its code is in a separate file, its names in ``__main__``."""
    names = {"graph": graph, "__name__": "__main__", "State": State}
    exec(compile(source, f"<cell {cell}>", "exec"), names)


def test_a_cell_that_is_run_again_replaces_its_node() -> None:
    """Seen to fail without ``_find_node``: the second cell made the graph MC113."""
    graph = StateGraph(State)
    run_cell(graph, "@graph.node\ndef one(state): return {'n': 1}", 1)
    run_cell(graph, "@graph.node(retry=2)\ndef two(state): return {'n': state['n'] + 1}", 2)
    graph.add_edges(START, "one", "two", END)
    assert graph.compile().invoke({"n": 0})["n"] == 2
    run_cell(graph, "@graph.node(version='2')\ndef one(state): return {'n': 10}", 3)
    run_cell(graph, "@graph.node(retry=2)\ndef two(state): return {'n': state['n'] + 1}", 2)
    assert graph.compile().invoke({"n": 0})["n"] == 11
    assert [node.name for node in declared(graph).nodes] == ["one", "two"]
    assert declared(graph).nodes[0].policy.version == "2"


def test_node_with_its_own_name_is_replaced_too() -> None:
    graph = StateGraph(State)
    for cell, source in enumerate(("{'n': 1}", "{'n': 2}")):
        run_cell(graph, f"@graph.node(name='first')\ndef one(state): return {source}", cell)
    graph.add_edges(START, "first", END)
    assert graph.compile().invoke({"n": 0})["n"] == 2


def test_another_function_of_the_same_name_is_still_a_second_node() -> None:
    """Only the qualified name counts; ``add_node`` and lambdas replace nothing."""
    graph = StateGraph(State)
    run_cell(graph, "@graph.node\ndef one(state): return {'n': 1}", 1)

    @graph.node
    def one(state: State) -> None: ...

    graph.add_node("two", step)
    graph.add_node("two", step)
    nameless: Callable[[State], None] = lambda state: None  # noqa: E731
    for _ in range(2):
        graph.node(name="three")(nameless)
    names = [node.name for node in declared(graph).nodes]
    assert names == ["one", "one", "two", "two", "three", "three"]


@pytest.mark.parametrize(
    ("option", "wrong", "said"),
    [
        ("retry", "3", "retry= takes a number of attempts or Retry(...), not '3'"),
        ("retry", True, "retry= takes a number of attempts or Retry(...), not True"),
        ("retry", [3], "retry= takes a number of attempts or Retry(...), not list"),
        ("timeout", "3s", "timeout= takes seconds or Timeout(...), not '3s'"),
        ("limit", "3", "limit= takes a whole number of at least 1, not '3'"),
        ("limit", 0, "limit= takes a whole number of at least 1, not 0"),
        ("on_error", step, "on_error= takes the name of a node, not function"),
        ("defer", "yes", "defer= takes True or False, not 'yes'"),
        ("inline", 1, "inline= takes True or False, not 1"),
        ("version", 2, "the version of a node must be a str, not int"),
        ("give", {}, "give= and take= must be functions of the state"),
        ("goto", [step], "a node is identified by its name, a str, not function: write 'step'"),
        ("cache", "1h", "cache= takes Cache(...), not str"),
    ],
)
def test_an_option_of_another_type_is_refused_when_declared(
    option: str, wrong: Any, said: str
) -> None:
    """Seen to fail without ``read_retry`` and its like: the first run raised AttributeError."""
    graph = StateGraph(State)
    with pytest.raises(TypeError) as caught:
        graph.add_node("one", step, **{option: wrong})
    assert str(caught.value) == said
    assert declared(graph).nodes == []


def test_a_command_does_not_answer_questions() -> None:
    """As elsewhere it does. Fails if ``resume=`` is accepted and then ignored."""
    with pytest.raises(TypeError, match=r"app\.resume\(thread, answer="):
        Command(resume="yes")


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    """Fails if each name is taken for one that moved: ``hasattr`` would raise."""
    assert not hasattr(milecastle.graph, "nothing_of_that_name")
    moved = "StateGraph"
    with pytest.raises(ImportError, match=f"from milecastle import {moved}"):
        getattr(milecastle.graph, moved)
