"""The simulator: one seed, one course; and a crash leaves nothing but what was committed."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from threading import Event as CancelEvent
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    Event,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    RunCancelled,
    RunTimeout,
    StateGraph,
    append,
)
from milecastle.app.runs.planned import PlannedRun
from milecastle.stores.memory import MemoryStore
from milecastle.testing import Crashed, CrashPoint, ManualClock, Simulator, TornStore


class Notes(TypedDict):
    notes: Annotated[list[str], append]


def chain(*names: str, **settings: Any) -> App[Notes]:
    graph = StateGraph(Notes)
    for name in names:
        graph.add_node(name, _note)
    graph.add_edges(START, *names, END)
    return graph.compile(**settings)


def _note(name: str) -> dict[str, Any]:
    return {"notes": [name]}


def divide_by_zero() -> None:
    raise ZeroDivisionError


def side_by_side(ran: list[str], *names: str) -> App[Notes]:
    """Nodes that note in ``ran`` in which order they run."""

    def note(name: str) -> dict[str, Any]:
        ran.append(name)
        return {"notes": [name]}

    graph = StateGraph(Notes)
    for name in names:
        graph.add_node(name, note)
        graph.add_edges(START, name, END)
    return graph.compile(store="memory://")


def test_an_undisturbed_simulation_does_what_invoke_does() -> None:
    app = chain("a", "b", store="memory://")
    simulator = Simulator(app)
    result = simulator.invoke({"notes": []}, "t")
    assert result.state == app.invoke({"notes": []}, "other").state
    assert simulator.kinds == ["Commit", "RunTask", "Commit", "RunTask", "Commit"]


def test_it_runs_without_a_store() -> None:
    assert Simulator(chain("a")).invoke({"notes": []})["notes"] == ["a"]


def test_one_seed_gives_one_order_and_seeds_give_different_ones() -> None:
    orders: dict[int, list[str]] = {}
    for seed in range(20):
        for _ in range(2):
            ran: list[str] = []
            result = Simulator(side_by_side(ran, *"abc"), seed=seed).invoke({"notes": []}, "t")
            assert result["notes"] == ["a", "b", "c"]
            assert orders.setdefault(seed, ran) == ran
    assert len({tuple(order) for order in orders.values()}) > 3


def test_seeds_decide_how_many_finished_tasks_are_reported_at_once() -> None:
    waits: set[int] = set()
    for seed in range(30):
        simulator = Simulator(side_by_side([], *"abc"), seed=seed)
        simulator.invoke({"notes": []}, "t")
        waits.add(simulator.kinds.count("AwaitTasks"))
    assert waits == {1, 2, 3}


def test_a_crash_before_a_commit_loses_it_and_a_crash_after_it_does_not() -> None:
    for when, head in (("before", 1), ("after", 2)):
        app = chain("a", "b", store=MemoryStore())
        point = CrashPoint(3, "before" if when == "before" else "after")
        simulator = Simulator(app, crashes=[point])
        with pytest.raises(Crashed, match=rf"crashed {when} effect 3 \(Commit\)") as crashed:
            simulator.invoke({"notes": []}, "t")
        assert (crashed.value.point, crashed.value.kind) == (point, "Commit")
        assert app.state("t").seq == head
        assert app.state("t").status == "running"
        assert simulator.invoke({"notes": []}, "t")["notes"] == ["a", "b"]


def test_task_whose_end_was_not_reported_runs_again() -> None:
    for seed in range(20):
        ran: list[str] = []
        simulator = Simulator(
            side_by_side(ran, *"abc"), seed=seed, crashes=[CrashPoint(3, "after")]
        )
        with pytest.raises(Crashed):
            simulator.invoke({"notes": []}, "t")
        lost = len(ran)
        assert lost >= 1
        assert simulator.invoke({"notes": []}, "t")["notes"] == ["a", "b", "c"]
        assert len(ran) == lost + 3


def test_some_tasks_end_without_being_reported_to_the_engine_at_once() -> None:
    repeated: set[int] = set()
    for seed in range(30):
        ran: list[str] = []
        simulator = Simulator(
            side_by_side(ran, *"abc"), seed=seed, crashes=[CrashPoint(5, "before")]
        )
        try:
            simulator.invoke({"notes": []}, "t")
        except Crashed as crashed:
            kind = crashed.kind
            simulator.invoke({"notes": []}, "t")
        else:
            continue
        if kind == "AwaitTasks":  # what was reported is committed by now
            repeated.add(len(ran) - 3)
    assert repeated == {0, 1, 2}


def test_it_may_crash_again_while_it_recovers() -> None:
    points = [CrashPoint(2, "before"), CrashPoint(3, "after"), CrashPoint(4, "before")]
    simulator = Simulator(chain("a", "b", store="memory://"), crashes=points)
    for _ in points:
        with pytest.raises(Crashed):
            simulator.invoke({"notes": []}, "t")
    assert simulator.invoke({"notes": []}, "t")["notes"] == ["a", "b"]
    # The third process died before it had written anything, so it left no run behind.
    assert [run.status for run in _runs(simulator)] == ["completed", "superseded", "superseded"]


def _runs(simulator: Simulator[Notes]) -> list[Any]:
    store = simulator.app.store
    return list(store.runs(simulator.app.state("t").key))


def test_engine_that_continues_after_the_crash_is_reported() -> None:
    class Stubborn(PlannedRun):
        def effects(self, services: Any) -> Generator[Any, Any, Any]:
            try:
                return (yield from PlannedRun.effects(self, services))
            finally:
                yield object()

    simulator = Simulator(chain("a", store="memory://"), crashes=[CrashPoint(2, "before")])
    runner = simulator.app.runner
    begin = runner.begin

    def begin_stubbornly(*args: Any) -> Any:
        planned: Any = begin(*args)
        planned.__class__ = Stubborn
        return planned

    vars(runner)["begin"] = begin_stubbornly
    with pytest.raises(AssertionError, match="after the crash"):
        simulator.invoke({"notes": []}, "t")


def test_a_volatile_store_loses_its_memory_in_a_crash() -> None:
    inner = MemoryStore()
    app = chain("a", "b", store=TornStore(inner, late={"entries", "runs"}))
    with pytest.raises(Crashed):
        Simulator(app, crashes=[CrashPoint(3, "after")]).invoke({"notes": []}, "t")
    assert app.state("t").seq == 1


def test_events_are_emitted_and_are_effects_at_which_it_may_crash() -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_event(self, event: Event) -> None:
            self.heard.append(event.type)

    listener = Listener()
    app = chain("a", store="memory://", observers=[listener])
    with pytest.raises(Crashed):
        Simulator(app, crashes=[CrashPoint(1, "before")]).invoke({"notes": []}, "t")
    assert listener.heard == []
    Simulator(app).invoke({"notes": []}, "t")
    assert listener.heard[0] == "graph_start"
    assert listener.heard[-1] == "graph_complete"


def test_async_nodes_and_routers_are_driven() -> None:
    graph = StateGraph(Notes)

    @graph.node
    async def a() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"notes": ["a"]}

    async def route(state: Notes) -> str:
        await asyncio.sleep(0)
        return "a" if len(state["notes"]) < 3 else END

    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", route, ["a", END])
    app = graph.compile(store="memory://")
    simulator = Simulator(app)
    assert simulator.invoke({"notes": []}, "t")["notes"] == ["a"] * 3
    assert "Evaluate" in simulator.kinds

    async def inside() -> None:
        simulator.invoke({"notes": []}, "inside")

    with pytest.raises(InvalidRequest, match="to_thread"):
        asyncio.run(inside())


def test_a_failing_node_fails_the_run() -> None:
    graph = StateGraph(Notes)
    for name in ("a", "b"):
        graph.add_node(name, divide_by_zero)
        graph.add_edges(START, name, END)
    app = graph.compile(store="memory://")
    with pytest.raises(ExecutionError) as raised:
        Simulator(app).invoke({"notes": []}, "t")
    assert isinstance(raised.value.cause, ZeroDivisionError)
    assert app.state("t").status == "failed"


def test_timeouts_are_in_virtual_time() -> None:
    clock = ManualClock()
    graph = StateGraph(Notes)

    @graph.node
    def wait(ctx: Context) -> dict[str, Any]:
        clock.advance(3600)
        return {"notes": [ctx.node]}

    graph.add_node("late", _note)
    graph.add_edges(START, "wait", "late", END)
    app = graph.compile(store="memory://")
    with pytest.raises(RunTimeout):
        Simulator(app, clock=clock).invoke(
            {"notes": []}, "t", options=ExecutionOptions(timeout=3000)
        )
    result = Simulator(app, clock=clock).resume("t", options=ExecutionOptions(timeout=3000))
    assert result["notes"] == ["wait", "late"]


def test_a_cancelled_run_stops() -> None:
    cancel = CancelEvent()
    cancel.set()
    app = chain("a", store="memory://")
    with pytest.raises(RunCancelled):
        Simulator(app).invoke({"notes": []}, "t", options=ExecutionOptions(cancel=cancel))
    assert app.state("t").status == "cancelled"


def test_a_thread_that_waits_is_returned_as_it_is() -> None:
    app = chain("a", "b", store="memory://", interrupt_before=["b"])
    simulator = Simulator(app)
    first = simulator.invoke({"notes": []}, "t")
    effects = len(simulator.kinds)
    again = simulator.invoke({"notes": []}, "t")
    assert (first.status, again.status) == ("interrupted", "interrupted")
    assert len(simulator.kinds) == effects
    assert simulator.resume("t")["notes"] == ["a", "b"]
