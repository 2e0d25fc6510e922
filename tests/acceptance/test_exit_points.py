"""G3: an exit point ends the run there, whatever edges leave it."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, Command, ResumeRefused, StateGraph, append
from milecastle.stores.memory import MemoryStore
from tests.acceptance.running import Runner, Wrap, always


class Log(TypedDict):
    log: Annotated[list[str], append]


def note(state: Log, name: str) -> dict[str, Any]:
    return {"log": [name]}


def graph_of(*names: str, wrap: Wrap) -> StateGraph[Log]:
    graph: StateGraph[Log] = StateGraph(Log)
    for name in names:
        graph.add_node(name, wrap(note))
    return graph


@pytest.mark.requirement("G3", api="StateGraph.set_exit_point")
@pytest.mark.parametrize("leaving", ["edge", "predicate", "router", "loop", "declared before"])
def test_an_exit_point_ends_the_run_whatever_edges_leave_it(
    run: Runner, wrap: Wrap, leaving: str
) -> None:
    """Fails if ``set_exit_point`` only adds an edge to END."""
    graph = graph_of("x", "y", wrap=wrap)
    graph.set_entry_point("x")
    if leaving != "declared before":
        graph.set_exit_point("x")
    if leaving in ("edge", "declared before"):
        graph.add_edge("x", "y")
    elif leaving == "predicate":
        graph.add_edge("x", "y", when=wrap(always(True)))
    elif leaving == "router":
        graph.add_conditional_edges("x", wrap(always("y")), ["y"])
    else:
        graph.add_edges("x", "y", "x")
    if leaving == "declared before":
        graph.set_exit_point("x")
    graph.set_exit_point("y")
    app = graph.compile(store=MemoryStore())
    result = run.invoke(app, {}, "t")
    assert (result["log"], result.status) == (["x"], "completed")
    for form in ("mermaid", "svg", "text"):
        assert "x" in app.draw(form)
    assert [(edge.source, edge.target) for edge in app.graph.manifest.edges][:2] == [
        (START, "x"),
        ("x", END),
    ]


@pytest.mark.requirement("G3", api="StateGraph.set_exit_point")
def test_branches_beside_an_exit_point_come_to_their_own_ends(run: Runner, wrap: Wrap) -> None:
    """Fails if an exit point drops what other branches would run next."""
    graph = graph_of("a", "stop", "go", "last", wrap=wrap)
    graph.set_entry_point("a")
    graph.add_edge("a", "stop")
    graph.add_edges("a", "go", "last", END)
    graph.add_edge("stop", "last")
    graph.set_exit_point("stop")
    assert run.invoke(graph.compile(), {})["log"] == ["a", "stop", "go", "last"]


@pytest.mark.requirement("G3", api="Command")
def test_a_command_of_an_exit_point_still_leads(run: Runner, wrap: Wrap) -> None:
    """``goto`` takes the place of the edges. Fails if its declaration is dropped with them."""
    graph = graph_of("y", wrap=wrap)

    def x(state: Log) -> Command[Any]:
        return Command(update={"log": ["x"]}, goto="y")

    graph.add_node("x", wrap(x), goto=["y"])
    graph.set_entry_point("x")
    graph.set_exit_point("x")
    graph.set_exit_point("y")
    assert run.invoke(graph.compile(), {})["log"] == ["x", "y"]


@pytest.mark.requirement("G3", "R4", api="ResumeRefused")
def test_a_node_that_became_an_exit_point_cuts_off_what_lay_ahead(run: Runner, wrap: Wrap) -> None:
    """A paused thread would have run ``y``. Fails if the manifest keeps edges that are dead."""
    store = MemoryStore()

    def build(ends: bool) -> Any:
        graph = graph_of("x", "y", wrap=wrap)
        graph.add_edges(START, "x", "y", END)
        if ends:
            graph.set_exit_point("x")
        return graph.compile(store=store, interrupt_before=["x"])

    run.invoke(build(False), {}, "t")
    with pytest.raises(ResumeRefused, match="the edge from 'x' to 'y' is ahead"):
        run.resume(build(True), "t")
