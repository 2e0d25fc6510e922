"""The engine as a generator: which effects it yields, and what it makes of their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from milecastle import (
    END,
    START,
    Conflict,
    ExecutionError,
    InvalidRequest,
    RunCancelled,
    RunTimeout,
    StateGraph,
    Unavailable,
)
from milecastle.engine.effects import (
    AwaitTasks,
    Commit,
    Emit,
    Evaluate,
    StartTasks,
    Stopped,
)
from milecastle.engine.plan import Ending
from milecastle.engine.run import Run
from milecastle.errors import RunError
from milecastle.model.task import Finished, RunTask
from milecastle.stores.memory import MemoryStore
from tests.unit.engine.by_hand import (
    KEY,
    Effects,
    State,
    effects_of,
    fan,
    head_of,
    journal_for,
    line,
    names_of,
    note,
    plan_for,
)


def commit_of(effect: object) -> Commit:
    assert isinstance(effect, Commit)
    return effect


def tasks_of(effect: object) -> tuple[RunTask, ...]:
    assert isinstance(effect, StartTasks)
    return effect.tasks


def started(effects: Effects) -> tuple[RunTask, ...]:
    """The tasks that are started now; the engine then waits for them."""
    tasks = tasks_of(effects.send(None))
    assert isinstance(effects.send(None), AwaitTasks)
    return tasks


def ending_of(call: Callable[[], object]) -> Ending:
    with pytest.raises(StopIteration) as caught:
        call()
    ending: Ending = caught.value.value
    return ending


def test_without_a_store_only_tasks_are_asked_for() -> None:
    names, ending = names_of(line("a", "b"))
    assert names == ["RunTask", "RunTask"]
    assert (ending.status, ending.values) == ("completed", {"n": 2, "log": ["a", "b"]})
    assert (ending.nodes, ending.next, ending.step) == (("b",), (), 2)


def test_with_a_store_each_step_is_committed_before_the_next() -> None:
    names, _ = names_of(line("a", "b"), store=MemoryStore())
    assert names == ["Commit", "RunTask", "Commit", "RunTask", "Commit"]


def test_task_gets_its_own_state() -> None:
    effects = effects_of(line("a"))
    task = effects.send(None)
    assert isinstance(task, RunTask)
    task.state["n"] = 99
    ending = ending_of(lambda: effects.send({"log": ["x"]}))
    assert ending.values == {"n": 0, "log": ["x"]}


def test_nothing_is_written_after_a_commit_that_failed() -> None:
    for error in (
        Conflict(tenant="tenant", thread="thread", expected=2, head=2),
        Unavailable("gone"),
        KeyboardInterrupt(),
    ):
        effects = effects_of(line("a"), stored=True)
        commit_of(effects.send(None))
        with pytest.raises(type(error)):
            effects.throw(error)


def test_a_driver_that_goes_away_gets_nothing_more() -> None:
    for steps in range(4):
        effects = effects_of(line("a"), stored=True, has_readers=True)
        effects.send(None)
        for _ in range(steps):
            effects.send(None)
        effects.close()


@pytest.mark.parametrize(
    ("reason", "status"), [(RunCancelled(), "cancelled"), (RunTimeout(seconds=1), "failed")]
)
def test_a_run_that_is_stopped_closes_its_record(reason: RunError, status: str) -> None:
    effects = effects_of(line("a"), stored=True)
    effects.send(None)
    assert isinstance(effects.send(None), RunTask)
    last = commit_of(effects.throw(Stopped(reason))).batch
    assert [run.status for run in last.runs] == [status]
    assert last.failure is not None
    assert last.failure.error_type == type(reason).__name__
    with pytest.raises(RunError) as caught:
        effects.send(None)
    assert caught.value is reason
    assert (caught.value.thread, caught.value.run_id) == ("thread", "run")


def test_a_failure_is_committed_before_it_is_raised() -> None:
    effects = effects_of(line("a"), stored=True)
    effects.send(None)
    effects.send(None)
    last = commit_of(effects.throw(ValueError("boom"))).batch
    assert last.entries == ()
    assert last.failure is not None
    assert last.failure.node == "a"
    with pytest.raises(ExecutionError) as caught:
        effects.send(None)
    assert isinstance(caught.value.cause, ValueError)


def test_a_failure_that_cannot_be_committed_is_noted() -> None:
    effects = effects_of(line("a"), stored=True)
    effects.send(None)
    effects.send(None)
    effects.throw(ValueError("boom"))
    with pytest.raises(ExecutionError) as caught:
        effects.throw(Unavailable("gone"))
    assert "could not be recorded" in caught.value.__notes__[0]


def test_an_input_that_does_not_fit_begins_nothing() -> None:
    for stored in (True, False):
        effects = effects_of(line("a"), stored=stored, update={"n": "text"})
        with pytest.raises(InvalidRequest, match="does not match the state"):
            effects.send(None)


def test_each_result_is_committed_while_others_run() -> None:
    effects = effects_of(fan("a", "b", "c"), stored=True)
    commit_of(effects.send(None))
    a, b, c = started(effects)
    first = commit_of(effects.send([Finished(b, {"log": ["b"]})])).batch
    assert (first.entries, [result.task for result in first.results]) == ((), ["1:b"])
    assert isinstance(effects.send(None), AwaitTasks)
    second = commit_of(effects.send([Finished(c, {"log": ["c"]})])).batch
    assert [result.task for result in second.results] == ["1:c"]
    assert isinstance(effects.send(None), AwaitTasks)
    step = commit_of(effects.send([Finished(a, {"log": ["a"]})])).batch
    assert (step.results, step.entries[0].nodes) == ((), ("a", "b", "c"))
    ending = ending_of(lambda: effects.send(None))
    assert ending.values["log"] == ["a", "b", "c"]


def test_branches_that_end_together_cost_no_separate_commit() -> None:
    effects = effects_of(fan("a", "b"), stored=True)
    effects.send(None)
    tasks = started(effects)
    step = commit_of(effects.send([Finished(task, {}) for task in tasks])).batch
    assert len(step.entries) == 1


def test_step_whose_updates_do_not_fit_together_failed_in_its_first_attempt() -> None:
    """No task of it failed, and none runs. Fails if the failure has another number."""
    effects = effects_of(fan("a", "b"), stored=True)
    effects.send(None)
    last = commit_of(effects.send([Finished(task, {"n": 1}) for task in started(effects)])).batch
    assert last.failure is not None
    assert (last.failure.node, last.failure.attempt) == ("b", 1)


def test_branches_without_a_store_keep_nothing() -> None:
    effects = effects_of(fan("a", "b"))
    a, b = started(effects)
    assert isinstance(effects.send([Finished(b, {"log": ["b"]})]), AwaitTasks)
    ending = ending_of(lambda: effects.send([Finished(a, {"log": ["a"]})]))
    assert ending.values["log"] == ["a", "b"]


@pytest.mark.parametrize("first", ["good", "bad"])
def test_the_result_of_a_sibling_outlasts_a_failure(first: str) -> None:
    graph = fan("bad", "good")
    store = MemoryStore()
    effects = effects_of(graph, stored=True)
    store.commit(commit_of(effects.send(None)).batch)
    tasks = {task.node: task for task in started(effects)}
    ended = {
        "good": Finished(tasks["good"], {"log": ["good"]}),
        "bad": Finished(tasks["bad"], None, ValueError("boom")),
    }
    effect = effects.send([ended.pop(first)])
    if first == "good":
        store.commit(commit_of(effect).batch)
        effect = effects.send(None)
    assert isinstance(effect, AwaitTasks)
    effect = effects.send(list(ended.values()))
    if first == "bad":
        store.commit(commit_of(effect).batch)
        effect = effects.send(None)
    store.commit(commit_of(effect).batch)
    with pytest.raises(ExecutionError) as caught:
        effects.send(None)
    assert caught.value.node == "bad"
    position = head_of(graph, store)
    assert position.results == {"1:good": {"log": ["good"]}}

    again = Run(plan_for(graph, position=position, journal=journal_for(graph, position))).effects()
    assert commit_of(again.send(None)).batch.entries[0].source == "takeover"
    (task,) = started(again)
    assert task.node == "bad"
    commit_of(again.send([Finished(task, {"log": ["bad"]})]))
    assert ending_of(lambda: again.send(None)).values["log"] == ["bad", "good"]


def test_a_step_whose_results_are_all_known_runs_nothing() -> None:
    graph = fan("a", "b")
    store = MemoryStore()
    effects = effects_of(graph, stored=True)
    store.commit(commit_of(effects.send(None)).batch)
    a, b = started(effects)
    store.commit(commit_of(effects.send([Finished(a, {"log": ["a"]})])).batch)
    effects.send(None)
    effects.close()
    position = head_of(graph, store)
    position.results["1:b"] = {"log": ["b"]}
    again = Run(plan_for(graph, position=position, journal=journal_for(graph, position))).effects()
    assert commit_of(again.send(None)).batch.entries[0].source == "takeover"
    step = commit_of(again.send(None)).batch
    assert step.entries[0].nodes == ("a", "b")
    assert b.node == "b"


def test_async_predicates_and_routers_are_evaluated_by_the_driver() -> None:
    async def holds(state: State) -> bool:
        return True

    async def route(state: State) -> str:
        return END

    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("a", note)
    graph.add_node("b", note)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b", when=holds)
    graph.add_edge("a", END)
    graph.add_conditional_edges("b", route, [END])
    effects = effects_of(graph.compile().graph)
    effects.send(None)
    first = effects.send({})
    assert isinstance(first, Evaluate)
    assert (first.function, first.state) == (holds, {"n": 0, "log": []})
    assert isinstance(effects.send(True), RunTask)
    second = effects.send({})
    assert isinstance(second, Evaluate)
    assert second.function is route
    assert ending_of(lambda: effects.send(END)).status == "completed"


def test_an_async_router_that_raises_ends_the_run_with_its_step_committed() -> None:
    async def route(state: State) -> str:
        return END

    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("a", note)
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", route, [END])
    effects = effects_of(graph.compile().graph, stored=True)
    effects.send(None)
    effects.send(None)
    assert isinstance(effects.send({"n": 1}), Evaluate)
    step = commit_of(effects.throw(ValueError("boom"))).batch
    assert (step.entries[0].next, step.entries[0].route) == ((), ("a",))
    assert step.runs == ()
    failure = commit_of(effects.send(None)).batch
    assert [run.status for run in failure.runs] == ["failed"]
    with pytest.raises(ExecutionError):
        effects.send(None)


def drop_events(effects: Effects, effect: Any) -> Any:
    while isinstance(effect, Emit):
        effect = effects.send(None)
    return effect


@pytest.mark.parametrize("stored", [True, False])
def test_a_reader_that_leaves_after_the_end_changes_nothing(stored: bool) -> None:
    effects = effects_of(line("a"), stored=stored, has_readers=True)
    effect: Any = effects.send(None)
    while not (isinstance(effect, Emit) and effect.event.type == "graph_complete"):
        effect = effects.send({} if isinstance(effect, RunTask) else None)
    with pytest.raises(Stopped):
        effects.throw(Stopped(RunCancelled()))


def test_a_reader_that_leaves_before_the_end_cancels_the_run() -> None:
    effects = effects_of(line("a"), stored=True, has_readers=True)
    effect: Any = effects.send(None)
    while not isinstance(effect, RunTask):
        effect = effects.send(None)
    ended: Any = effects.send({})
    assert ended.event.type == "node_complete"
    last = commit_of(effects.throw(Stopped(RunCancelled()))).batch
    assert [run.status for run in last.runs] == ["cancelled"]
    told: Any = effects.send(None)
    assert told.event.type == "graph_failed"
    with pytest.raises(RunCancelled):
        effects.send(None)


def test_the_key_of_the_thread_is_in_every_event() -> None:
    effects = effects_of(line("a"), stored=True, has_readers=True)
    event: Any = effects.send(None)
    assert (event.event.type, event.event.key) == ("graph_start", KEY)
    effects.close()
