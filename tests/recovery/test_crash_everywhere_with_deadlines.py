"""Deadlines through crashes: a timeout is decided once, by a commit."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, Context, StateGraph, TimedOut, append, interrupt
from milecastle.engine.reserved_channels import WAITS
from milecastle.engine.task_port import RunTaskPort
from milecastle.model.interrupt import Interrupt
from milecastle.testing import UNANSWERED, CrashMismatch, crash_everywhere


class Order(TypedDict, total=False):
    log: Annotated[list[str], append]


def approve(state: Order, ctx: Context) -> dict[str, Any]:
    """Nobody answers the first question; the second is answered in time."""
    ctx.once("mail", lambda: None)
    try:
        found = interrupt("lead?", answer=str, within=60)
    except TimedOut:
        ctx.once("escalate", lambda: None)
        found = interrupt("director?", answer=str, within=60, otherwise="nobody")
    return {"log": [found, interrupt("sure?", answer=str, within=30, otherwise="nobody")]}


def beside(state: Order, ctx: Context) -> dict[str, Any]:
    ctx.sleep(45)
    return {"log": ["slept"]}


def answer(found: Interrupt) -> Any:
    return "yes" if found.question == "director?" else UNANSWERED


def parallel() -> App[Any]:
    graph: StateGraph[Order] = StateGraph(Order)
    for name, node in (("approve", approve), ("beside", beside)):
        graph.add_node(name, node)
        graph.add_edges(START, name, END)
    return graph.compile(store="memory://")


def nested() -> App[Any]:
    inner: StateGraph[Order] = StateGraph(Order, name="inner")
    inner.add_node("approve", approve)
    inner.add_edges(START, "approve", END)
    graph: StateGraph[Order] = StateGraph(Order, name="outer")
    graph.add_node("sub", inner.compile())
    graph.add_edges(START, "sub", END)
    return graph.compile(store="memory://")


def simple() -> App[Any]:
    def decide(state: Order) -> dict[str, Any]:
        return {"log": [interrupt("ok?", answer=str, within=60, otherwise="nobody")]}

    graph: StateGraph[Order] = StateGraph(Order)
    graph.add_node("decide", decide)
    graph.add_node("last", lambda state: {"log": ["last"]})
    graph.add_edges(START, "decide", "last", END)
    return graph.compile(store="memory://")


@pytest.mark.parametrize("made", [simple, parallel, nested])
def test_no_crash_changes_how_a_graph_with_deadlines_ends(made: Any) -> None:
    """Tried: the control below."""
    report = crash_everywhere(made(), {}, answer=answer)
    assert report.effects > 8
    assert not report.mismatches


def test_deadline_judged_by_the_clock_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: code runs after a timeout that no log has, and a crash opens the question."""

    def by_clock(self: RunTaskPort, label: str, seconds: float | None) -> tuple[int | None, bool]:
        progress, plan = vars(self)["_progress"], vars(self)["_plan"]
        known = progress.reserved.get(WAITS, {}).get(label)
        if known is None or known[2] is None:
            return real(self, label, seconds)
        return known[2], known[2] <= plan.clock.now()

    def nothing(*given: object) -> dict[str, int]:
        return {}

    real = RunTaskPort.deadline
    monkeypatch.setattr(RunTaskPort, "deadline", by_clock)
    monkeypatch.setattr("milecastle.app.runs.starting.passed_deadlines", nothing)
    monkeypatch.setattr("milecastle.app.runs.starting.refuse_without_answer", nothing)
    monkeypatch.setattr("milecastle.engine.step.is_held", nothing)
    with pytest.raises(CrashMismatch, match="asked again"):
        crash_everywhere(simple(), {}, answer=answer)
