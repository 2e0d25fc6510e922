"""Workers: threads for the tasks of a step, as many as they need and no more."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from time import monotonic, sleep
from typing import Annotated, Any, TypedDict, cast

import pytest

from milecastle import END, START, App, ExecutionConfig, StateGraph, append
from milecastle.drivers.local import LocalExecutors
from milecastle.drivers.workers import Workers
from milecastle.engine.context import RunningTask, RunResources
from milecastle.model.task import RunFacts, RunTask

user: ContextVar[str] = ContextVar("user")


class State(TypedDict, total=False):
    items: list[int]
    item: int
    found: Annotated[list[Any], append]


def mapped(work: Any, most: int = 32) -> App[State]:
    graph: StateGraph[State] = StateGraph(State)

    def split(state: State) -> None:
        return None

    graph.add_node("split", split)
    graph.add_node("work", work)
    graph.add_edge(START, "split")
    graph.map("split", "work", over="items", item="item")
    graph.add_edge("work", END)
    graph.with_default_config(ExecutionConfig(max_parallel=most))
    return graph.compile()


def test_tasks_that_wait_for_each_other_all_get_a_thread() -> None:
    barrier = threading.Barrier(20)

    def meet(state: State) -> dict[str, Any]:
        barrier.wait(60)
        return {"found": [1]}

    assert len(mapped(meet).invoke({"items": list(range(20))})["found"]) == 20


def test_short_tasks_make_do_with_few_threads() -> None:
    threads: set[int] = set()

    def note(state: State) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return {"found": [1]}

    mapped(note).invoke({"items": list(range(8))})
    assert len(threads) <= 8


def test_task_sees_the_context_of_the_caller() -> None:
    def who(state: State) -> dict[str, Any]:
        return {"found": [user.get()]}

    token = user.set("ada")
    try:
        assert mapped(who).invoke({"items": [1, 2, 3]})["found"] == ["ada"] * 3
    finally:
        user.reset(token)


def workers_alive() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "milecastle-worker"]


def all_end(before: list[threading.Thread]) -> bool:
    """Whether the threads that came since then end soon."""
    made = [thread for thread in workers_alive() if thread not in before]
    for thread in made:
        thread.join(5)
    return not any(thread.is_alive() for thread in made)


def late_then(later: Any, late: Any) -> App[State]:
    """A node that is out of time at once, and one that runs after that was seen to."""

    def see_to_it(state: State) -> None:
        return None

    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("late", late, timeout=0.02, on_error="see_to_it")
    graph.add_node("see_to_it", see_to_it)
    graph.add_node("later", later)
    graph.add_edges(START, "late", END)
    graph.add_edges("see_to_it", "later", END)
    return graph.compile()


def test_a_thread_that_comes_back_late_ends_with_the_run() -> None:
    """Nobody reads any more that it is back, so nobody counts it."""
    before, timed_out, back = workers_alive(), threading.Event(), threading.Event()

    def late(state: State) -> dict[str, Any]:
        timed_out.wait(60)
        back.set()
        return {}

    def later(state: State) -> dict[str, Any]:
        timed_out.set()
        back.wait(5)
        sleep(0.05)  # it takes a moment to go back to where it waits for work
        return {"found": [1]}

    assert late_then(later, late).invoke({})["found"] == [1]
    assert all_end(before)


def test_a_thread_that_is_still_in_its_node_ends_when_that_returns() -> None:
    before, go = workers_alive(), threading.Event()

    def late(state: State) -> dict[str, Any]:
        go.wait(60)
        return {}

    def later(state: State) -> dict[str, Any]:
        return {"found": [1]}

    try:
        assert late_then(later, late).invoke({})["found"] == [1]
        assert [one for one in workers_alive() if one not in before]
    finally:
        go.set()
    assert all_end(before)


def test_idle_threads_end_with_the_run() -> None:
    before, barrier = workers_alive(), threading.Barrier(20)

    def meet(state: State) -> dict[str, Any]:
        barrier.wait(60)
        return {"found": [1]}

    mapped(meet).invoke({"items": list(range(20))})
    assert all_end(before)


def test_what_waits_when_the_run_ends_is_not_begun() -> None:
    """Tasks of a run that was stopped: a worker that runs one may end it, and begins no other."""
    graph: StateGraph[State] = StateGraph(State)
    go, ran = threading.Event(), list[int]()

    def work(state: State) -> dict[str, Any]:
        go.wait(60)
        ran.append(1)
        return {}

    graph.add_node("work", work)
    graph.add_edges(START, "work", END)
    compiled, port = graph.compile().graph, cast("Any", None)
    run, place = (
        RunFacts("run", "", (), None, None),
        RunResources(port, compiled.nodes, compiled.schema),
    )
    before, workers = workers_alive(), Workers(1)
    tasks = [RunTask(run, "work", {}, str(number), 1) for number in range(3)]
    workers.start([RunningTask(task, place, place.nodes[task.node]) for task in tasks])
    workers.close()
    go.set()
    assert all_end(before)
    assert len(ran) <= 1


def test_a_driver_that_is_woken_while_it_begins_to_wait_has_one_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if two threads may make the workers of a call: the driver then waits at one queue for
    ever, and is woken at the other."""
    made: list[Workers] = []

    class Slow(Workers):
        def __init__(self, most: int) -> None:
            sleep(0.05)
            super().__init__(most)
            made.append(self)

    monkeypatch.setattr("milecastle.drivers.workers.Workers", Slow)
    executor = LocalExecutors(()).on_thread({}, 1)
    waking = threading.Thread(target=executor.wake)
    waking.start()
    assert executor.wait(monotonic() + 10) == []
    waking.join()
    assert len(made) == 1
