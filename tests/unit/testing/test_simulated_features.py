"""The simulator knows it all: records, timeouts, sleeps, cancelled tasks, several processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from random import Random
from threading import Event as CancelEvent
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Conflict,
    Context,
    ExecutionConfig,
    ExecutionError,
    ExecutionOptions,
    ResumeRefused,
    Retry,
    RunCancelled,
    StateGraph,
    Timeout,
    append,
    interrupt,
)
from milecastle.errors import NodeTimeout
from milecastle.testing import Crashed, CrashPoint, ManualClock, Simulator


class Notes(TypedDict):
    notes: Annotated[list[str], append]


EMPTY: Notes = {"notes": []}


def chain(*functions: Any, **policy: Any) -> App[Notes]:
    graph = StateGraph(Notes)
    for function in functions:
        graph.add_node(function.__name__, function, **policy)
    graph.add_edges(START, *(function.__name__ for function in functions), END)
    return graph.compile(store="memory://")


# -- records -----------------------------------------------------------------------------------


def recording_app(done: Counter[str], *, stubborn: bool = False) -> App[Notes]:
    def pay(ctx: Context) -> dict[str, Any]:
        def act(name: str) -> str:
            done[name] += 1
            return name

        try:
            ctx.once("first", act, "first")
            ctx.once("second", act, "second")
        except BaseException:
            if not stubborn:
                raise
        return {"notes": ["paid"]}

    return chain(pay)


def test_a_record_is_an_effect_inside_the_one_that_runs_the_node() -> None:
    simulator = Simulator(recording_app(Counter()))
    simulator.invoke(EMPTY, "t")
    assert simulator.kinds == ["Commit", "RunTask", "Record", "Record", "Commit"]


@pytest.mark.parametrize(
    ("point", "first", "second"),
    [
        (CrashPoint(3, "before"), 2, 1),
        (CrashPoint(3, "after"), 1, 1),
        (CrashPoint(4, "before"), 1, 2),
        (CrashPoint(4, "after"), 1, 1),
        (CrashPoint(2, "after"), 1, 1),
    ],
)
def test_what_is_recorded_is_not_done_again(point: CrashPoint, first: int, second: int) -> None:
    done: Counter[str] = Counter()
    simulator = Simulator(recording_app(done), crashes=[point])
    with pytest.raises(Crashed) as crashed:
        simulator.invoke(EMPTY, "t")
    assert crashed.value.kind == ("RunTask" if point.effect == 2 else "Record")
    assert simulator.invoke(EMPTY, "t")["notes"] == ["paid"]
    assert done == {"first": first, "second": second}


def test_a_node_that_swallows_everything_does_not_outlive_the_crash() -> None:
    done: Counter[str] = Counter()
    app = recording_app(done, stubborn=True)
    simulator = Simulator(app, crashes=[CrashPoint(3, "before")])
    with pytest.raises(Crashed):
        simulator.invoke(EMPTY, "t")
    assert app.state("t").seq == 1
    assert simulator.invoke(EMPTY, "t")["notes"] == ["paid"]


def test_records_of_async_nodes_are_effects_and_they_may_ask() -> None:
    async def ask(ctx: Context) -> dict[str, Any]:
        await ctx.aonce("look", asyncio.sleep, 0)
        return {"notes": [interrupt("name?", answer=str)]}

    simulator = Simulator(chain(ask), crashes=[CrashPoint(3, "after")])
    with pytest.raises(Crashed):
        simulator.invoke(EMPTY, "t")
    assert simulator.invoke(EMPTY, "t").status == "interrupted"
    assert simulator.resume("t", "Ada")["notes"] == ["Ada"]
    assert simulator.kinds.count("Record") == 1


# -- time --------------------------------------------------------------------------------------


def slow_app(clock: ManualClock, seconds: float, **policy: Any) -> App[Notes]:
    def work(ctx: Context) -> dict[str, Any]:
        if policy.get("beats"):
            ctx.heartbeat()
        clock.advance(seconds if ctx.attempt == 1 else 0)
        return {"notes": [f"attempt {ctx.attempt}"]}

    return chain(work, timeout=policy["timeout"], retry=Retry(attempts=2, delay=60))


@pytest.mark.parametrize(
    ("timeout", "beats", "attempt"),
    [
        (Timeout(run=10), False, 2),
        (Timeout(idle=10), False, 2),
        (Timeout(idle=10), True, 1),
        (Timeout(run=30), False, 1),
    ],
)
def test_a_node_times_out_in_virtual_time(timeout: Timeout, beats: bool, attempt: int) -> None:
    clock = ManualClock()
    app = slow_app(clock, 20, timeout=timeout, beats=beats)
    began = clock.now()
    result = Simulator(app, clock=clock).invoke(EMPTY, "t")
    assert result["notes"] == [f"attempt {attempt}"]
    if attempt == 2:  # the pause before it has passed, too
        assert clock.now() - began >= 30_000_000


def test_a_node_that_is_late_and_fails_has_timed_out() -> None:
    clock = ManualClock()

    def work() -> None:
        clock.advance(20)
        raise ValueError

    with pytest.raises(ExecutionError) as raised:
        Simulator(chain(work, timeout=10.0), clock=clock).invoke(EMPTY, "t")
    assert isinstance(raised.value.cause, NodeTimeout)


def test_a_sleeper_is_woken_by_advancing_the_clock() -> None:
    def nap(ctx: Context) -> dict[str, Any]:
        ctx.sleep(3600)
        return {"notes": ["awake"]}

    simulator = Simulator(chain(nap))
    assert simulator.invoke(EMPTY, "t").status == "sleeping"
    with pytest.raises(ResumeRefused, match="sleeping until"):
        simulator.resume("t")
    simulator.clock.advance(3600)
    assert simulator.resume("t")["notes"] == ["awake"]


# -- tasks that are cancelled ----------------------------------------------------------------


def test_seeds_decide_which_tasks_a_cancellation_still_reaches() -> None:
    ran: set[int] = set()
    for seed in range(200):
        names: list[str] = []
        simulator = Simulator(failing_beside(names), seed=seed)
        with pytest.raises(ExecutionError, match="'bad'"):
            simulator.invoke(EMPTY, "t")
        if "CancelTasks" in simulator.kinds:
            ran.add(len(names))
    assert ran >= {1, 2, 3}


def failing_beside(names: list[str]) -> App[Notes]:
    graph = StateGraph(Notes)

    async def good(name: str) -> dict[str, Any]:
        names.append(name)
        return {"notes": [name]}

    def bad() -> None:
        raise ValueError

    for name in ("a", "b", "c"):
        graph.add_node(name, good)
        graph.add_edges(START, name, END)
    graph.add_node("bad", bad)
    graph.add_edges(START, "bad", END)
    graph.with_default_config(ExecutionConfig(sibling_failure="cancel"))
    return graph.compile(store="memory://")


# -- several processes -------------------------------------------------------------------------

Walk = Generator[str, None, Any]


def in_turns(walks: list[Walk], random: Random) -> list[Any]:
    """Continue walks in random turns; what each returned or raised."""
    ended: list[Any] = [None] * len(walks)
    going = list(range(len(walks)))
    while going:
        number = random.choice(going)
        try:
            next(walks[number])
            continue
        except StopIteration as stop:
            ended[number] = stop.value
        except Exception as error:
            ended[number] = error
        going.remove(number)
    return ended


def asking_app() -> App[Notes]:
    graph = StateGraph(Notes)

    def ask(ctx: Context, name: str) -> dict[str, Any]:
        return {"notes": [f"{name} {interrupt(name, answer=int)}"]}

    def after() -> dict[str, Any]:
        return {"notes": ["after"]}

    for name in ("left", "right"):
        graph.add_node(name, ask)
        graph.add_edges(START, name, "after")
    graph.add_node("after", after)
    graph.add_edge("after", END)
    return graph.compile(store="memory://")


def test_of_two_answers_at_once_one_loses_and_stops() -> None:
    lost: Counter[int] = Counter()
    for seed in range(60):
        simulator = Simulator(asking_app(), seed=seed)
        asked = simulator.invoke(EMPTY, "t").interrupts
        walks = [
            simulator.walk(None, "t", answers={each.id: number for each in asked})
            for number in (1, 2)
        ]
        ended = in_turns(walks, Random(seed))
        losers = [number for number, each in enumerate(ended) if isinstance(each, Exception)]
        assert len(losers) == 1
        lost[losers[0]] += 1
        won = 2 - losers[0]
        notes = [f"left {won}", f"right {won}", "after"]
        assert simulator.app.state("t").state["notes"] == notes
    assert len(lost) == 2


def test_of_two_resumes_at_once_one_is_fenced_out() -> None:
    conflicts = 0
    for seed in range(60):
        done: Counter[str] = Counter()
        app = recording_app(done)
        simulator = Simulator(app, seed=seed, crashes=[CrashPoint(2, "before")])
        with pytest.raises(Crashed):
            simulator.invoke(EMPTY, "t")
        ended = in_turns([simulator.walk(None, "t") for _ in range(2)], Random(seed))
        conflicts += sum(isinstance(each, Conflict) for each in ended)
        assert app.state("t").state["notes"] == ["paid"]
        assert set(done.values()) <= {1, 2}  # a fenced run learns of it when it records
    assert conflicts > 20


def test_what_is_recorded_after_somebody_looked_is_not_done_again() -> None:
    """Rows do not move the head: a takeover reads them again once the thread is its own."""
    done: Counter[str] = Counter()
    simulator = Simulator(recording_app(done))
    old, new = simulator.walk(EMPTY, "t"), simulator.walk(None, "t")
    assert [next(old), next(old)] == ["Look", "Commit"]
    assert next(new) == "Look"
    assert next(old) == "RunTask"
    assert done == {"first": 1, "second": 1}
    (result,) = in_turns([new], Random(0))
    assert result["notes"] == ["paid"]
    assert done == {"first": 1, "second": 1}
    assert isinstance(in_turns([old], Random(0))[0], Conflict)


def test_of_two_resumes_after_a_stop_only_one_begins() -> None:
    """A resumed run has its own entry before its nodes can leave anything."""
    done: Counter[str] = Counter()
    simulator = Simulator(recording_app(done))
    stopped = CancelEvent()
    stopped.set()
    with pytest.raises(RunCancelled):
        simulator.invoke(EMPTY, "t", options=ExecutionOptions(cancel=stopped))
    one, other = (simulator.walk(None, "t") for _ in range(2))
    assert [next(one), next(other), next(one)] == ["Look", "Look", "Commit"]
    assert isinstance(in_turns([other], Random(0))[0], Conflict)
    assert done == {}
    assert in_turns([one], Random(0))[0]["notes"] == ["paid"]
