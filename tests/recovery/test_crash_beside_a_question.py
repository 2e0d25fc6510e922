"""A crash while one task of a step works and another one waits for an answer, in a subgraph too."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, Context, ResumeRefused, StateGraph, append, interrupt
from milecastle.testing import Crashed, CrashPoint, Simulator


class Notes(TypedDict):
    notes: Annotated[list[str], append]


EMPTY: Notes = {"notes": []}


def napping(store: str | None = None) -> App[Notes]:
    """One node sleeps for an hour while another one asks."""
    graph = StateGraph(Notes)

    def nap(ctx: Context) -> dict[str, Any]:
        ctx.sleep(3600)
        return {"notes": ["rested"]}

    def ask() -> dict[str, Any]:
        return {"notes": [interrupt("name?", answer=str)]}

    graph.add_node("nap", nap)
    graph.add_node("ask", ask)
    for name in ("nap", "ask"):
        graph.add_edges(START, name, END)
    return graph.compile(store=store)


def nested() -> App[Notes]:
    graph = StateGraph(Notes)
    graph.add_node("child", napping())
    graph.add_edges(START, "child", END)
    return graph.compile(store="memory://")


@pytest.mark.parametrize("make", [lambda: napping("memory://"), nested], ids=["alone", "child"])
def test_a_question_stays_open_wherever_the_run_dies_beside_it(make: Any) -> None:
    crashes = 0
    while True:
        app: App[Notes] = make()
        first = Simulator(app)
        assert first.invoke(EMPTY, "t").status == "interrupted"
        first.clock.advance(3600)
        point = CrashPoint(crashes + 1, "after")
        second = Simulator(app, clock=first.clock, crashes=[point])
        try:
            second.resume("t")
        except Crashed:
            crashes += 1
        else:
            break
        go_on(second)
        (question,) = app.state("t").interrupts
        assert question.question == "name?"
        assert second.resume("t", "Ada")["notes"] == ["rested", "Ada"]
    assert crashes > 4


def go_on(simulator: Simulator[Notes]) -> None:
    """What a person does who finds the thread cut short."""
    try:
        assert simulator.invoke(EMPTY, "t").status == "interrupted"
    except ResumeRefused:
        assert simulator.app.state("t").interrupts  # nothing is left to do but to answer
