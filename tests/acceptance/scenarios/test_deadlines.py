"""Questions with a deadline: answered in time, or timed out by a commit, never both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, field_validator

from milecastle import (
    END,
    START,
    App,
    Conflict,
    Context,
    ExecutionError,
    InvalidAnswer,
    ResumeRefused,
    StateGraph,
    Store,
    TimedOut,
    append,
    interrupt,
)
from milecastle.errors import AlreadyAnswered
from milecastle.testing import ManualClock, with_store
from tests.acceptance.overtaking import Overtaken
from tests.acceptance.scenarios.calling import Caller, Paint


class Pair(BaseModel):
    """An answer that only its node can check."""

    count: int

    @field_validator("count")
    @classmethod
    def is_even(cls, count: int) -> int:
        if count % 2:
            raise ValueError("a pair is even")
        return count


class Case(TypedDict, total=False):
    log: Annotated[list[str], append]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def moment(clock: ManualClock, seconds: float = 0) -> datetime:
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.now())
    return now + timedelta(seconds=seconds)


def asks(text: str = "ok?", within: Any = 60, **more: Any) -> Any:
    def node(state: Case) -> dict[str, Any]:
        return {"log": [f"{text} {interrupt(text, answer=str, within=within, **more)}"]}

    return node


def side_by_side(store: Store, clock: ManualClock, **nodes: Any) -> App[Any]:
    graph: StateGraph[Case] = StateGraph(Case)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return with_store(graph.compile(store=store), store, clock=clock)


@pytest.mark.requirement("M5")
@pytest.mark.parametrize("within", [60, 60.0, timedelta(minutes=1)])
def test_question_without_an_answer_times_out_at_its_deadline(
    call: Caller, store: Store, paint: Paint, clock: ManualClock, within: Any
) -> None:
    """Tried: ``passed_deadlines`` that finds none; the resume is refused."""
    app = side_by_side(store, clock, a=paint(asks(within=within, otherwise="nobody")))
    ends = moment(clock, 60)
    waiting = call.invoke(app, {})
    assert (waiting.status, waiting.wake_at) == ("interrupted", ends)
    assert [found.until for found in app.state("t").interrupts] == [ends]
    clock.advance(59)
    with pytest.raises(ResumeRefused, match="waits for an answer"):
        call.resume(app)
    clock.advance(1)
    assert call.resume(app).state["log"] == ["ok? nobody"]
    assert [entry.source for entry in app.history("t")] == ["step", "answer", "interrupt", "input"]


def test_answer_in_time_is_taken(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """Also after the deadline, as long as no timeout is committed: the first commit decides.

    Tried: a deadline that ends by the clock, before the answer is looked at; the second thread
    returns ``otherwise``.
    """
    app = side_by_side(store, clock, a=paint(asks(otherwise="nobody")))
    for thread, late in (("t", 10), ("u", 100)):
        call.invoke(app, {}, thread)
        clock.advance(late)
        assert call.resume(app, thread, answer="yes").state["log"] == ["ok? yes"]


def test_without_otherwise_the_node_gets_an_error(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """Caught, the node goes on; uncaught, the run fails, and its retry times out again.

    Tried: ``TIMED_OUT`` dropped by the failure; the retry commits the timeout again. With the
    waits dropped too, it asks again.
    """

    def escalates(state: Case) -> dict[str, Any]:
        try:
            return {"log": [interrupt("you?", answer=str, within=60)]}
        except TimedOut as error:
            told = f"{error.node} {error.deadline:%S}"
            return {"log": [f"{told} {interrupt('boss?', answer=str)}"]}

    ends = moment(clock, 60)
    app = side_by_side(store, clock, a=paint(escalates))
    call.invoke(app, {})
    clock.advance(61)
    assert [found.question for found in call.resume(app).interrupts] == ["boss?"]
    assert call.resume(app, answer="fine").state["log"] == [f"a {ends:%S} fine"]

    fails = side_by_side(store, clock, a=paint(asks()))
    call.invoke(fails, {}, "u")
    clock.advance(61)
    for _ in range(2):
        with pytest.raises(ExecutionError) as raised:
            call.resume(fails, "u")
        assert isinstance(raised.value.cause, TimedOut)
    assert [entry.source for entry in fails.history("u")].count("answer") == 1


def test_answer_after_the_timeout_is_told_when_it_timed_out(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """Tried: ``refuse_unasked`` without its check; the caller is told that it is not asked yet."""
    app = side_by_side(
        store, clock, a=paint(asks("a?", 60, otherwise="-")), b=paint(asks("b?", None))
    )
    ends = f"{moment(clock, 60):%H:%M:%S}"
    asked = {found.question: found.id for found in call.invoke(app, {}).interrupts}
    clock.advance(90)
    assert [found.question for found in call.resume(app).interrupts] == ["b?"]
    with pytest.raises(AlreadyAnswered, match=f"timed out at .*{ends}"):
        call.resume(app, answers={asked["a?"]: "late"})
    assert call.resume(app, answer="yes").state["log"] == ["a? -", "b? yes"]
    with pytest.raises(AlreadyAnswered, match="timed out at"):
        call.resume(app, answers={asked["a?"]: "later"})
    with pytest.raises(ResumeRefused, match="already ended"):
        call.resume(app, answers={asked["b?"]: "later"})


def test_deadline_counts_from_the_first_time_the_task_asked(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """Also when a sibling is answered, or the node refused an answer and asks again.

    Tried: ``deadline`` that does not look at the known wait; the refused answer moves it.
    """

    def picky(state: Case) -> dict[str, Any]:
        return {"log": [str(interrupt("even?", answer=Pair, within=60).count)]}

    app = side_by_side(store, clock, a=paint(picky), b=paint(asks("b?", None)))
    ends = moment(clock, 60)
    asked = {found.question: found.id for found in call.invoke(app, {}).interrupts}
    clock.advance(20)
    with pytest.raises(InvalidAnswer):
        call.resume(app, answers={asked["even?"]: {"count": 3}})
    clock.advance(20)
    call.resume(app, answers={asked["b?"]: "yes"})
    (found,) = app.state("t").interrupts
    assert (found.until, found.refused is not None) == (ends, True)
    assert app.state("t").wake_at == ends


def test_parallel_deadlines_end_one_by_one_beside_a_sleep(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """The thread wakes for each. Tried: ``wake_time`` with the last of all tasks."""

    def sleeps(state: Case, ctx: Context) -> dict[str, Any]:
        ctx.sleep(45)
        return {"log": ["slept"]}

    app = side_by_side(
        store,
        clock,
        a=paint(asks("a?", 30, otherwise="-")),
        b=paint(asks("b?", 60, otherwise="-")),
        c=paint(sleeps),
    )
    begins = moment(clock)
    found = call.invoke(app, {})
    for seconds in (30, 45, 60):
        wakes = begins + timedelta(seconds=seconds)
        assert found.wake_at == wakes
        clock.advance((wakes - moment(clock)).total_seconds())
        found = call.resume(app)
    assert found.state["log"] == ["a? -", "b? -", "slept"]


def test_one_answer_and_one_timeout_are_committed_together(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """Tried: ``passed_deadlines`` without ``ended``; the answered question timed out as well."""
    app = side_by_side(
        store,
        clock,
        a=paint(asks("a?", 30, otherwise="-")),
        b=paint(asks("b?", 30, otherwise="-")),
    )
    asked = {found.question: found.id for found in call.invoke(app, {}).interrupts}
    clock.advance(31)
    assert call.resume(app, answers={asked["b?"]: "yes"}).state["log"] == ["a? -", "b? yes"]
    found = [(one.answer, one.timed_out) for one in app.answers("t")]
    assert found == [("yes", False), (None, True)]


def nested(store: Store, clock: ManualClock, node: Any) -> App[Any]:
    app: Any = None
    for name in ("deep", "sub", "top"):
        graph: StateGraph[Case] = StateGraph(Case, name=name)
        graph.add_node("a", node if app is None else app)
        graph.add_edges(START, "a", END)
        app = graph.compile(store=store if name == "top" else None)
    return with_store(app, store, clock=clock)


def test_question_of_a_subgraph_times_out_in_the_root(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """Its answers are committed there too, so one of them is refused.

    Tried: children that judge by the clock, and a root without their deadlines; the late answer
    is told that the question is not asked yet.
    """

    def node(state: Case) -> dict[str, Any]:
        first = interrupt("first?", answer=str, within=60, otherwise="-")
        return {"log": [f"{first} {interrupt('second?', answer=str, within=60, otherwise='+')}"]}

    app = nested(store, clock, paint(node))
    waiting = call.invoke(app, {})
    ends = moment(clock, 60)
    assert ([found.until for found in waiting.interrupts], waiting.wake_at) == ([ends], ends)
    clock.advance(61)
    second = call.resume(app)
    assert [found.question for found in second.interrupts] == ["second?"]
    assert second.wake_at == moment(clock, 60)
    with pytest.raises(AlreadyAnswered, match="timed out"):
        call.resume(app, answers={waiting.interrupts[0].id: "late"})
    assert call.resume(app, answer="in time").state["log"] == ["- in time"]


def test_fork_keeps_the_deadline(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """Also one that has passed: it times out at the first resume.

    Tried: ``_status`` with coming times only; the fork says nothing of its deadline.
    """
    app = side_by_side(store, clock, a=paint(asks(otherwise="-")))
    ends = moment(clock, 60)
    call.invoke(app, {})
    head = app.state("t").seq
    app.fork("t", head, as_thread="u")
    assert app.state("u").wake_at == ends
    clock.advance(61)
    assert call.resume(app).status == "completed"
    app.fork("t", head)
    app.fork("t", head, as_thread="v")
    for thread in ("t", "u", "v"):
        assert app.state(thread).wake_at == ends
        assert call.resume(app, thread).state["log"] == ["ok? -"]


def test_code_without_the_deadline_still_gets_the_timeout(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """The log decides. Tried: ``ask`` that looks for timeouts only with ``within=``: it waits."""

    def node(state: Case) -> dict[str, Any]:
        first = interrupt("a?", answer=str, within=60 if old else None, otherwise="-")
        return {"log": [first, interrupt("b?", answer=str)]}

    old = True
    app = side_by_side(store, clock, a=paint(node))
    call.invoke(app, {})
    clock.advance(61)
    call.resume(app)
    old = False
    assert call.resume(app, answer="yes").state["log"] == ["-", "yes"]


@pytest.mark.parametrize("within", [-1, float("nan"), float("inf"), timedelta(days=-1)])
def test_deadline_that_is_no_time_from_now_is_refused(
    call: Caller, store: Store, paint: Paint, clock: ManualClock, within: Any
) -> None:
    """Tried: no check; errors of the engine for NaN and infinity, the rest is accepted."""
    app = side_by_side(store, clock, a=paint(asks(within=within)))
    with pytest.raises(ExecutionError, match="within= takes a time from now"):
        call.invoke(app, {})


@pytest.mark.requirement("M5")
@pytest.mark.parametrize("answer_is_first", [True, False])
def test_second_of_answer_and_timeout_is_refused_and_runs_nothing(
    call: Caller, clock: ManualClock, answer_is_first: bool
) -> None:
    """Tried: a timeout without an entry of its own; the node runs with it, and none is refused."""
    ran: list[str] = []

    def node(state: Case) -> dict[str, Any]:
        found = interrupt("ok?", answer=str, within=60, otherwise="nobody")
        ran.append(found)
        return {"log": [found]}

    store = Overtaken()
    app = side_by_side(store, clock, a=node)
    app.invoke({}, "t")
    clock.advance(61)
    answered: dict[str, Any] = {"answer": "yes"}
    first, second = (answered, {}) if answer_is_first else ({}, answered)
    store.other = lambda: app.resume("t", **first)
    with pytest.raises(Conflict):
        call.resume(app, **second)
    expected = "yes" if answer_is_first else "nobody"
    assert (ran, app.state("t").state["log"]) == ([expected], [expected])
