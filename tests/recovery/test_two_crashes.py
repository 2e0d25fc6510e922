"""A second crash while the first one is being recovered from: every pair of them."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, TypedDict

from milecastle import END, START, App, StateGraph, append
from milecastle.app.threads.log import log_codec_for
from milecastle.testing import Crashed, CrashPoint, Simulator
from milecastle.testing.crash_course import CourseRecord


class Notes(TypedDict):
    notes: Annotated[list[str], append]


SEED = 3  # one that reports parallel tasks one by one


def note(name: str) -> dict[str, Any]:
    return {"notes": [name]}


def fan_out(**settings: Any) -> App[Notes]:
    graph = StateGraph(Notes)
    for name in ("start", "left", "right", "join"):
        graph.add_node(name, note)
    graph.add_edges(START, "start", "left", "join", END)
    graph.add_edges("start", "right", "join")
    return graph.compile(store="memory://", **settings)


def course(app: App[Notes], points: list[CrashPoint]) -> tuple[list[str], list[str], int, set[str]]:
    """The effects, the notes, the number of interrupts, and the tasks that ran in vain."""
    record = CourseRecord(log_codec_for(app.graph), watching=False)
    simulator = Simulator(app, seed=SEED, crashes=points, witness=record)
    notes, interrupts = go_to_the_end(simulator)
    return simulator.kinds, notes, interrupts, record.wasted


def go_to_the_end(simulator: Simulator[Notes]) -> tuple[list[str], int]:
    """Call until the thread ended; its notes, and how often it was interrupted."""
    while True:
        history = list(simulator.app.history("t"))
        if history and not history[0].next:
            interrupts = [known for known in history if known.source == "interrupt"]
            return simulator.app.state("t").state["notes"], len(interrupts)
        waits = bool(history) and simulator.app.state("t").status == "interrupted"
        try:
            simulator.invoke(None if waits else {"notes": []}, "t")
        except Crashed:
            continue


def differing_pairs(**settings: Any) -> list[tuple[int, int, str]]:
    """The pairs of crashes after which the thread does not end as it does without."""
    found: list[tuple[int, int, str]] = []
    effects, *expected = course(fan_out(**settings), [])
    assert "AwaitTasks" in effects
    for first, gap, side in product(range(1, len(effects) + 1), range(1, 5), range(2)):
        when: Any = ("before", "after")[side]
        points = [CrashPoint(first, "after"), CrashPoint(first + gap, when)]
        _, *found_here = course(fan_out(**settings), points)
        if found_here != expected:
            found.append((first, first + gap, when))
    return found


def test_a_second_crash_changes_nothing() -> None:
    assert differing_pairs() == []


def test_an_interrupt_that_was_passed_is_not_met_again_after_two_crashes() -> None:
    assert differing_pairs(interrupt_before=["left"], interrupt_after=["join"]) == []
