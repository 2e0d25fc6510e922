"""`ctx.sleep`: a run that rests until a time, takes no process, and says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    ExecutionError,
    InvalidRequest,
    ResumeRefused,
    Retry,
    StateGraph,
    Store,
    append,
    interrupt,
)
from milecastle.testing import ManualClock, with_store
from tests.acceptance.scenarios.calling import (
    Caller,
    Calls,
    Paint,
    everything,
    ids,
    of_state,
    questions,
)


class Night(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def time_of(clock: ManualClock, seconds: float = 0) -> datetime:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.now())
    return moment + timedelta(seconds=seconds)


def side_by_side(store: Store, clock: ManualClock, **nodes: Any) -> App[Any]:
    graph: StateGraph[Night] = StateGraph(Night)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return with_store(graph.compile(store=store), store, clock=clock)


def sleeper(until: Any, calls: Calls | None = None, name: str = "awake") -> Any:
    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.sleep(until)
        if calls is not None:
            calls(name)
        return {"log": [name]}

    return node


@pytest.mark.parametrize("form", ["seconds", "timedelta", "datetime"])
def test_a_run_sleeps_until_its_time_and_refuses_to_be_woken_before(
    call: Caller, store: Store, paint: Paint, clock: ManualClock, form: str
) -> None:
    until: Any = {
        "seconds": 3600,
        "timedelta": timedelta(hours=1),
        "datetime": time_of(clock, 3600),
    }[form]
    wakes = time_of(clock, 3600)
    app = side_by_side(store, clock, a=paint(sleeper(until)))
    result = call.invoke(app, {})
    assert (result.status, result.wake_at, result.interrupts) == ("sleeping", wakes, ())
    head = app.state("t")
    assert (head.status, head.wake_at, head.next) == ("sleeping", wakes, ("a",))
    clock.advance(3599)
    before = everything(app)
    with pytest.raises(ResumeRefused, match="sleeping until"):
        call.resume(app)
    assert everything(app) == before
    assert call.invoke(app, {}).status == "sleeping"  # the same input: it sleeps on
    assert everything(app) == before
    clock.advance(1)
    result = call.resume(app)
    assert (result.status, result["log"], result.wake_at) == ("completed", ["awake"], None)


def test_run_record_says_when_to_wake(call: Caller, store: Store, clock: ManualClock) -> None:
    app = side_by_side(store, clock, a=sleeper(60))
    run_id = call.invoke(app, {}).run_id
    (found,) = store.threads("default", status="sleeping", limit=5)
    record = store.run(found.key, run_id)
    assert record is not None
    assert record.wake_at == clock.now() + 60_000_000
    clock.advance(60)
    result = call.invoke(app, {})
    assert (result.status, result.run_id) == ("completed", run_id)
    record = store.run(found.key, run_id)
    assert record is not None
    assert (record.status, record.wake_at) == ("completed", None)


def test_several_tasks_sleep_each_for_itself(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    calls, start = Calls(), clock.now()
    nodes = {f"s{n}": sleeper(n, calls, f"s{n}") for n in (30, 10, 20)}
    app = side_by_side(store, clock, quick=of_state(lambda state: calls("quick")), **nodes)
    result = call.invoke(app, {})
    for passed, made in ((10, ["s10"]), (20, ["s10", "s20"])):
        assert result.wake_at == time_of(clock, (start - clock.now()) / 1e6 + passed)
        clock.advance(10)
        result = call.resume(app)
        assert (result.status, calls.made) == ("sleeping", ["quick", *made])
    clock.advance(10)
    assert call.resume(app)["log"] == ["s30", "s10", "s20"]
    assert calls.count("quick") == 1


def test_a_node_may_sleep_several_times(call: Caller, store: Store, clock: ManualClock) -> None:
    calls = Calls()

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.once("first", lambda: calls("first"))
        ctx.sleep(10)
        ctx.once("second", lambda: calls("second"))
        ctx.sleep(10)
        return {"log": ["done"]}

    app = side_by_side(store, clock, a=node)
    call.invoke(app, {})
    clock.advance(10)
    result = call.resume(app)
    assert (result.status, result.wake_at) == ("sleeping", time_of(clock, 10))
    clock.advance(10)
    assert call.resume(app)["log"] == ["done"]
    assert calls.made == ["first", "second"]


def test_a_time_that_has_passed_is_not_waited_for(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    app = side_by_side(store, clock, a=sleeper(time_of(clock, -5)), b=sleeper(0))
    assert call.invoke(app, {}).status == "completed"


def test_a_time_without_a_zone_is_refused(call: Caller, store: Store, clock: ManualClock) -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - that is what is refused
    app = side_by_side(store, clock, a=sleeper(naive))
    with pytest.raises(ExecutionError) as raised:
        call.invoke(app, {})
    assert isinstance(raised.value.__cause__, InvalidRequest)


def test_a_subgraph_sleeps_and_so_does_its_parent(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    calls = Calls()
    inner: StateGraph[Night] = StateGraph(Night)
    inner.add_node("before", of_state(lambda state: calls("before")))
    inner.add_node("sleep", sleeper(100, calls))
    inner.add_edges(START, "before", "sleep", END)
    middle: StateGraph[Night] = StateGraph(Night)
    middle.add_node("inner", inner.compile())
    middle.add_edges(START, "inner", END)
    app = side_by_side(store, clock, child=middle.compile(), other=sleeper(50, calls, "other"))
    result = call.invoke(app, {})
    assert (result.status, result.wake_at) == ("sleeping", time_of(clock, 50))
    clock.advance(50)
    result = call.resume(app)
    assert (result.status, result.wake_at) == ("sleeping", time_of(clock, 50))
    assert calls.made == ["before", "other"]
    clock.advance(50)
    assert call.resume(app)["log"] == ["awake", "other"]
    assert calls.made == ["before", "other", "awake"]


def test_a_run_that_waits_for_a_person_and_for_a_time_takes_either(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    calls = Calls()

    def asks(state: Any) -> dict[str, Any]:
        return {"log": [interrupt("q", answer=str)]}

    app = side_by_side(store, clock, ask=asks, sleep=sleeper(10, calls))
    result = call.invoke(app, {})
    assert (result.status, questions(result)) == ("interrupted", ["q"])
    assert result.wake_at == time_of(clock, 10)
    with pytest.raises(ResumeRefused):
        call.resume(app)
    clock.advance(10)
    result = call.resume(app)
    assert (result.status, calls.made, result.wake_at) == ("interrupted", ["awake"], None)
    assert call.resume(app, answer="yes")["log"] == ["yes", "awake"]

    clock.advance(-10)
    result = call.invoke(app, {}, "u")
    result = call.resume(app, "u", answers={ids(result)["q"]: "early"})
    assert (result.status, result.interrupts) == ("sleeping", ())
    clock.advance(10)
    assert call.resume(app, "u")["log"] == ["early", "awake"]


def test_sleep_is_not_a_failed_attempt(call: Caller, store: Store, clock: ManualClock) -> None:
    def node(state: Any, ctx: Context) -> dict[str, Any]:
        for _ in range(4):
            ctx.sleep(10)
        return {"log": ["done"]}

    graph: StateGraph[Night] = StateGraph(Night)
    graph.add_node("a", node, retry=Retry(attempts=2, delay=0))
    graph.add_edges(START, "a", END)
    app = with_store(graph.compile(store=store), store, clock=clock)
    result = call.invoke(app, {})
    for _ in range(4):
        assert result.status == "sleeping"
        clock.advance(10)
        result = call.resume(app)
    assert result["log"] == ["done"]


def test_going_back_to_before_the_sleep_needs_no_wait(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    calls = Calls()
    graph: StateGraph[Night] = StateGraph(Night)
    graph.add_node("first", of_state(lambda state: calls("first")))
    graph.add_node("sleep", sleeper(100, calls))
    graph.add_edges(START, "first", "sleep", END)
    app = with_store(graph.compile(store=store), store, clock=clock)
    call.invoke(app, {})
    app.fork("t", 1)
    result = call.resume(app)
    assert calls.count("first") == 2
    assert (result.status, result.wake_at) == ("sleeping", time_of(clock, 100))


def test_a_run_set_back_to_a_sleep_that_is_over_continues(
    call: Caller, store: Store, paint: Paint, clock: ManualClock
) -> None:
    """It was refused until the end of a later sleep, which the branch does not have."""

    def twice(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.sleep(60)
        ctx.sleep(3600)
        return {"log": ["awake"]}

    app = side_by_side(store, clock, a=paint(twice))
    call.invoke(app, {"n": 0}, "t")
    first = app.state("t").seq
    clock.advance(61)
    call.resume(app, "t")
    app.fork("t", first)
    assert app.state("t").wake_at is None
    result = call.resume(app, "t")
    assert result.wake_at == time_of(clock, 3600)
    with pytest.raises(ResumeRefused, match="sleeping until"):
        call.resume(app, "t")


def test_a_fork_of_a_sleeping_run_sleeps_until_the_same_time(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    app = side_by_side(store, clock, a=sleeper(100))
    wakes = call.invoke(app, {}).wake_at
    app.fork("t", None, "fork")
    clock.advance(60)
    result = call.resume(app, "fork")
    assert (result.status, result.wake_at) == ("sleeping", wakes)
    clock.advance(40)
    assert call.resume(app, "fork")["log"] == ["awake"]
    assert call.resume(app)["log"] == ["awake"]


def test_fork_of_a_run_whose_subgraph_sleeps_runs_its_own_subgraph(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    inner: StateGraph[Night] = StateGraph(Night)
    inner.add_node("sleep", sleeper(100))
    inner.add_edges(START, "sleep", END)
    app = side_by_side(store, clock, child=inner.compile())
    call.invoke(app, {})
    clock.advance(50)
    app.fork("t", None, "fork")
    result = call.resume(app, "fork")
    assert result.wake_at == time_of(clock, 100)
    clock.advance(100)
    assert call.resume(app, "fork")["log"] == ["awake"]


def test_a_subgraph_that_waits_for_a_person_and_for_a_time_takes_either(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    calls = Calls()

    def asks(state: Any) -> dict[str, Any]:
        answer = interrupt("q", answer=str)
        calls("answered")
        return {"log": [answer]}

    def child() -> App[Any]:
        inner: StateGraph[Night] = StateGraph(Night)
        for name, node in {"ask": asks, "sleep": sleeper(100, calls)}.items():
            inner.add_node(name, node)
            inner.add_edge(START, name)
            inner.add_edge(name, END)
        return inner.compile()

    app = side_by_side(store, clock, child=child())
    result = call.invoke(app, {})
    assert (questions(result), result.wake_at) == (["q"], time_of(clock, 100))
    result = call.resume(app, answer="early")
    assert (result.status, calls.made) == ("sleeping", ["answered"])
    clock.advance(100)
    assert call.resume(app)["log"] == ["early", "awake"]

    calls.made.clear()
    call.invoke(app, {}, "u")
    clock.advance(100)
    result = call.resume(app, "u")
    assert (questions(result), calls.made) == (["q"], ["awake"])
    before = everything(app, "u")
    with pytest.raises(ResumeRefused, match="waits for an answer"):
        call.resume(app, "u")
    assert everything(app, "u") == before
    assert call.resume(app, "u", answer="late")["log"] == ["late", "awake"]


def test_finished_sleep_does_not_continue_a_run_without_its_answer(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    def asks(state: Any) -> dict[str, Any]:
        return {"log": [interrupt("q", answer=str)]}

    app = side_by_side(store, clock, ask=asks, sleep=sleeper(10))
    call.invoke(app, {})
    clock.advance(10)
    call.resume(app)
    before = everything(app)
    with pytest.raises(ResumeRefused, match="waits for an answer"):
        call.resume(app)
    assert everything(app) == before


class Hurrying(ManualClock):
    """A clock that moves whenever it is read: as if each moment of a run took a second."""

    def now(self) -> int:
        self.advance(1)
        return super().now()


def test_sleep_that_passes_before_it_is_saved_is_still_a_sleep(call: Caller, store: Store) -> None:
    """Seen to fail: without a time the thread was ``interrupted``, and no worker woke it."""

    def naps(state: Night, ctx: Context) -> dict[str, Any]:
        ctx.sleep(0.5)
        return {"log": ["woken"]}

    graph = StateGraph(Night)
    graph.add_node("naps", naps)
    graph.add_edges(START, "naps", END)
    app = with_store(graph.compile(), store, clock=Hurrying())
    resting = call.invoke(app, {"log": []}, "t")
    assert resting.status == "sleeping"
    assert resting.wake_at is not None
    (info,) = app.threads()
    assert (info.status, info.wake_at is None) == ("sleeping", False)
    assert call.resume(app, "t").status == "completed"


def test_sibling_whose_time_comes_while_another_runs_is_not_forgotten(
    call: Caller, store: Store, clock: ManualClock
) -> None:
    """Seen to fail: its time had passed when the step was saved, so the thread had none."""

    def short(state: Night, ctx: Context) -> dict[str, Any]:
        ctx.sleep(10)
        clock.advance(60)  # it takes so long that the other one's time comes
        interrupt("and now?")
        return {"log": ["short"]}

    def long(state: Night, ctx: Context) -> dict[str, Any]:
        ctx.sleep(20)
        return {"log": ["long"]}

    graph = StateGraph(Night)
    graph.add_node("short", short)
    graph.add_node("long", long)
    for name in ("short", "long"):
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = with_store(graph.compile(), store, clock=clock)
    call.invoke(app, {"log": []}, "t")
    clock.advance(11)
    waiting = call.resume(app, "t")
    assert waiting.status == "interrupted"
    assert waiting.wake_at is not None
    (info,) = app.threads()
    assert info.wake_at is not None
    again = call.resume(app, "t")  # without an answer: the other one runs
    assert (again.status, again.wake_at) == ("interrupted", None)
    assert call.resume(app, "t", answer="done").state["log"] == ["short", "long"]


def test_attempts_after_a_sleep_are_counted(call: Caller, store: Store, clock: ManualClock) -> None:
    """They were counted 1, 1, 2, and the failure said one less than the attempt that failed."""
    attempts: list[int] = []

    def node(state: Any, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        ctx.sleep(10)
        ctx.sleep(10)
        raise ValueError("on purpose")

    app = side_by_side(store, clock, a=node)
    call.invoke(app, {})
    clock.advance(10)
    call.resume(app)
    clock.advance(10)
    call.fails(app, None)
    assert attempts == [1, 2, 3]
    failure = store.failure(app.state("t").key, app.state("t").run_id)
    assert failure is not None
    assert failure.attempt == 3
