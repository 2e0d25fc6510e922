"""Nodes that run in other processes: what they can do, and what happens when those are lost."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from milecastle import (
    App,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    Keyring,
    Result,
    RunCancelled,
    RunTimeout,
    StateGraph,
    UnserializableState,
)
from milecastle.compute.processes import ProcessPool
from milecastle.errors import DefinitionError, InvalidUpdate, NodeTimeout, ProcessLost
from tests.acceptance.compute import graphs
from tests.acceptance.compute.graphs import Part, Unlucky, Work
from tests.unit.compute.in_threads import app_on

Invoke = Callable[..., Result[Work]]


def app_of(graph: StateGraph[Work], **options: Any) -> App[Work]:
    return graph.compile(store="memory://", **options)


@pytest.fixture(params=["blocking", "on a loop"])
def invoke(request: pytest.FixtureRequest) -> Invoke:
    """``invoke``, and ``ainvoke`` on a loop."""

    def call(app: App[Work], *args: Any, **named: Any) -> Result[Work]:
        if request.param == "blocking":
            return app.invoke(*args, **named)
        return asyncio.run(app.ainvoke(*args, **named))

    return call


def lines(folder: Path, name: str) -> int:
    path = folder / name
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# -- what they can do --------------------------------------------------------------------------


def test_items_run_in_other_processes_and_join_in_order(invoke: Invoke) -> None:
    """Fails if `start` of the placed executor hands every task to the local one."""
    state = invoke(app_of(graphs.squares), {"numbers": [*range(40)]}, "t").state
    parts = state.get("parts", [])
    assert [part.number for part in parts] == [n * n for n in range(40)]
    assert os.getpid() not in {part.pid for part in parts}


def test_values_that_items_share_are_seen_by_each(invoke: Invoke) -> None:
    """Fails if a base is not sent again to a process that has another run's."""
    app = app_of(graphs.shared)
    for count in (3, 5, 40):
        state = invoke(app, {"numbers": [*range(count)]}, f"t{count}").state
        assert state.get("said") == [f"{n} of {count}" for n in range(count)]


def test_async_nodes_record_and_emit(invoke: Invoke) -> None:
    app = app_of(graphs.asquares)
    parts = invoke(app, {"numbers": [1, 2, 3]}, "t").state.get("parts", [])
    assert [part.number for part in parts] == [1, 4, 9]
    assert os.getpid() not in {part.pid for part in parts}


def test_emitted_values_reach_the_stream() -> None:
    app = app_of(graphs.asquares)
    events = [*app.stream({"numbers": [*range(100)]}, "t", mode="events")]
    emitted = sorted(event.update for event in events if event.type == "emit")
    assert emitted == [*range(100)]


def test_question_is_asked_and_answered(invoke: Invoke) -> None:
    app = app_of(graphs.asking)
    result = invoke(app, {"numbers": [1]}, "t")
    assert [(found.question, found.show) for found in result.interrupts] == [("How many?", [1])]
    assert app.resume("t", answer=4).state.get("said") == ["4 item"]


def test_node_sleeps_and_is_resumed(invoke: Invoke) -> None:
    app = app_of(graphs.sleeping)
    assert invoke(app, {}, "t").status == "sleeping"
    time.sleep(0.01)
    assert app.resume("t").state.get("said") == ["slept"]


def test_command_and_send_lead_on(invoke: Invoke) -> None:
    assert invoke(app_of(graphs.going), {}, "t").state.get("said") == ["went", "last 5"]


def test_node_of_a_subgraph_runs_in_a_process(invoke: Invoke) -> None:
    parts = invoke(app_of(graphs.outer), {"number": 3}, "t").state.get("parts", [])
    assert [part.number for part in parts] == [9]
    assert parts[0].pid != os.getpid()


def test_branches_run_here_and_there(invoke: Invoke) -> None:
    state = invoke(app_of(graphs.mixed), {"number": 2}, "t").state
    assert state.get("said") == ["last 2"]
    assert [part.number for part in state.get("parts", [])] == [4]


def test_config_of_the_call_is_sent(invoke: Invoke) -> None:
    app = app_of(graphs.configured)
    assert invoke(app, {}, "t", config={"tone": "low"}).state.get("said") == ["low"]


def test_app_without_a_store_works_as_well(invoke: Invoke) -> None:
    parts = invoke(graphs.squares.compile(), {"numbers": [3]}).state.get("parts", [])
    assert parts == [Part(9, parts[0].pid)]


# -- errors ------------------------------------------------------------------------------------


def test_error_of_a_node_is_its_own_class_with_its_attributes(
    invoke: Invoke, tmp_path: Path
) -> None:
    with pytest.raises(ExecutionError) as caught:
        invoke(app_of(graphs.raising), {"folder": str(tmp_path)}, "t")
    cause = caught.value.__cause__
    assert isinstance(cause, Unlucky)
    assert (cause.number, str(cause)) == (7, "number 7")
    assert "in raises" in "".join(cause.__notes__)


def test_retry_policy_knows_the_class_of_a_remote_error(invoke: Invoke, tmp_path: Path) -> None:
    """Fails if errors come back as a class that only has the same name."""
    app = app_of(graphs.retrying)
    with pytest.raises(ExecutionError):
        invoke(app, {"folder": str(tmp_path)}, "t")
    assert lines(tmp_path, "ran") == 2


def test_node_that_exits_fails_and_its_process_lives(invoke: Invoke) -> None:
    with pytest.raises(ExecutionError) as caught:
        invoke(app_of(graphs.exiting), {}, "t")
    assert isinstance(caught.value.__cause__, SystemExit)


def test_value_that_cannot_be_stored_is_named_with_its_path(invoke: Invoke) -> None:
    with pytest.raises(UnserializableState) as caught:
        invoke(app_of(graphs.nonsense), {}, "t")
    assert (caught.value.node, caught.value.path) == ("item", "$.said[0]")


def test_what_is_not_an_update_is_not_retried(invoke: Invoke) -> None:
    """Fails if `Finished.refused` is ignored: then it ends as an exhausted retry."""
    with pytest.raises(InvalidUpdate) as caught:
        invoke(app_of(graphs.number), {}, "t")
    assert "returned int" in str(caught.value)


def test_transaction_is_refused_with_what_to_do(invoke: Invoke) -> None:
    with pytest.raises(ExecutionError) as caught:
        invoke(app_of(graphs.transacting), {}, "t")
    assert isinstance(caught.value.__cause__, InvalidRequest)
    assert "remove run_on=" in str(caught.value.__cause__)


def test_config_that_is_not_data_is_refused(invoke: Invoke) -> None:
    with pytest.raises(UnserializableState):
        invoke(app_of(graphs.configured), {}, "t", config={"tone": object()})


def test_graph_that_no_module_names_is_refused(invoke: Invoke) -> None:
    def node(state: Work) -> Work:
        return {}

    with pytest.raises(InvalidRequest, match="top level of a module"):
        invoke(app_of(graphs.single(node, version="unnamed")), {}, "t")


def test_unknown_place_and_impossible_options_are_refused() -> None:
    graph = StateGraph(Work)
    given: Any = "cloud"
    with pytest.raises(TypeError, match="run_on= takes"):
        graph.add_node("a", graphs.square, run_on=given)
    with pytest.raises(TypeError, match="inline=True"):
        graph.add_node("a", graphs.square, run_on="process", inline=True)
    with pytest.raises(TypeError, match="cannot have run_on="):
        graph.add_node("a", graphs.square, run_on="process", outputs="a.txt")
    graph.add_node("a", graphs.squares.compile(), run_on="process")
    graph.add_edges("__start__", "a", "__end__")
    with pytest.raises(DefinitionError, match="has run_on="):
        graph.compile()


@pytest.mark.parametrize("encrypted", [False, True])
def test_node_in_another_process_stores_and_reads_files(tmp_path: Path, encrypted: bool) -> None:
    """Fails if what is stored there is not encrypted as it is here."""
    keyring = Keyring({"k": bytes(32)}, store="memory://") if encrypted else None
    app = graphs.storing.compile(
        store="memory://", objects=f"file://{tmp_path}/objects", encryption=keyring
    )
    (tmp_path / "given.txt").write_text("written here")
    given = app.files.store(tmp_path / "given.txt")
    state = app.invoke({"folder": str(tmp_path), "given": given}, thread="t").state
    assert int(state.get("said", ["0"])[0]) != os.getpid()
    made = app.state(thread="t")["made"]
    assert (made.name, made.secret is not None) == ("made.txt", encrypted)
    with app.files.open(made) as opened:
        assert opened.read() == b"WRITTEN HERE"


def test_files_in_memory_cannot_be_shared_with_another_process(tmp_path: Path) -> None:
    app = graphs.storing.compile(store="memory://", objects="memory:///")
    (tmp_path / "given.txt").write_text("written here")
    given = app.files.store(tmp_path / "given.txt")
    with pytest.raises(ExecutionError, match="memory of the process"):
        app.invoke({"folder": str(tmp_path), "given": given}, thread="t")


# -- lost processes ----------------------------------------------------------------------------


def test_killed_process_repeats_only_the_task_that_it_ran(invoke: Invoke, tmp_path: Path) -> None:
    """Fails if the tasks queued behind the lost one are lost with it, or run twice."""
    app = app_of(graphs.unlucky_three)
    state = invoke(app, {"numbers": [*range(30)], "folder": str(tmp_path)}, "t").state
    assert [part.number for part in state.get("parts", [])] == [n * n for n in range(30)]
    ran = {n: lines(tmp_path, f"ran {n}") for n in range(30)}
    assert ran == {n: 2 if n == 3 else 1 for n in range(30)}


def test_task_that_kills_its_process_is_not_tried_forever(invoke: Invoke, tmp_path: Path) -> None:
    """Fails if a lost process is not an attempt: then the task starts without end."""
    app = app_of(graphs.doomed)
    with pytest.raises(ExecutionError) as caught:
        invoke(app, {"folder": str(tmp_path)}, "t")
    assert isinstance(caught.value.__cause__, ProcessLost)
    assert "was killed by signal 9" in str(caught.value.__cause__)
    assert lines(tmp_path, "ran") == 3


def test_declared_retry_counts_lost_processes(invoke: Invoke, tmp_path: Path) -> None:
    with pytest.raises(ExecutionError):
        invoke(app_of(graphs.doomed_with_retry), {"folder": str(tmp_path)}, "t")
    assert lines(tmp_path, "ran") == 2


def test_what_was_recorded_is_not_repeated_by_the_next_process(
    invoke: Invoke, tmp_path: Path
) -> None:
    """Fails if `record` answers before the record is committed, or the attempt is not counted."""
    state = invoke(app_of(graphs.talking), {"folder": str(tmp_path)}, "t").state
    assert (lines(tmp_path, "mail"), lines(tmp_path, "ran")) == (1, 2)
    assert state.get("said") == ["1 2 True"]


def test_stopped_process_does_not_stop_the_others(tmp_path: Path) -> None:
    """Fails if a pipe is written under the lock: a full one then blocks every other task."""
    pool, texts = ProcessPool(2), ["x" * 300_000] * 20

    def run(graph: StateGraph[Work], values: Work) -> Future[Result[Work]]:
        given: Work = {**values, "folder": str(tmp_path)}
        return threads.submit(app_on(pool, graph).invoke, given, "t")

    with ThreadPoolExecutor(4) as threads, closing(pool):

        def both_are_ready() -> bool:  # and have had short tasks: some are queued ahead
            ended = run(graphs.squares, {"numbers": [*range(100)]}).result(60).state
            return len({part.pid for part in ended.get("parts", ())}) == 2

        wait_for(both_are_ready)
        first = run(graphs.stopping, {})
        wait_for(lambda: lines(tmp_path, "stopped") == 1)
        stopped = int((tmp_path / "stopped").read_text())
        try:
            second = run(graphs.measuring, {"texts": texts})
            wait_for(lambda: lines(tmp_path, "measured") >= 5)
            third = run(graphs.squares, {"numbers": [1, 2, 3]}).result(60).state
            assert [part.number for part in third.get("parts", [])] == [1, 4, 9]
            assert not first.done()
        finally:
            os.kill(stopped, signal.SIGKILL)
        assert second.result(60).state.get("said") == ["300000"] * len(texts)
        assert first.result(60).state.get("said") == ["went on"]
    assert (lines(tmp_path, "stopped"), lines(tmp_path, "measured")) == (2, len(texts))


# -- time and cancellation ---------------------------------------------------------------------


@pytest.mark.parametrize("graph", [graphs.timed, graphs.idle])
def test_node_out_of_time_is_stopped(
    invoke: Invoke, tmp_path: Path, graph: StateGraph[Work]
) -> None:
    began = time.monotonic()
    with pytest.raises(ExecutionError) as caught:
        invoke(app_of(graph), {"folder": str(tmp_path)}, "t")
    assert isinstance(caught.value.__cause__, NodeTimeout)
    assert time.monotonic() - began < 30
    assert lines(tmp_path, "ran") == 1


def stalled(invoke: Invoke, tmp_path: Path, graph: StateGraph[Work], **options: Any) -> None:
    values: Any = {"numbers": [1, 2, 3, 4], "folder": str(tmp_path)}
    invoke(app_of(graph), values, "t", options=ExecutionOptions(**options))


@pytest.mark.parametrize("graph", [graphs.stalled, graphs.astalled])
def test_cancelled_run_stops_its_tasks(
    invoke: Invoke, tmp_path: Path, graph: StateGraph[Work]
) -> None:
    """Fails if the blocking driver does not look while tasks run elsewhere: it waits 600 s."""
    cancel = threading.Event()

    def once_running() -> None:
        while not lines(tmp_path, "ran"):
            time.sleep(0.01)
        cancel.set()

    threading.Thread(target=once_running, daemon=True).start()
    with pytest.raises(RunCancelled):
        stalled(invoke, tmp_path, graph, cancel=cancel)
    # the processes are free again, whatever their tasks did
    parts = app_of(graphs.squares).invoke({"numbers": [1, 2]}, "u").state.get("parts", [])
    assert [part.number for part in parts] == [1, 4]
    if graph is graphs.astalled:
        assert lines(tmp_path, "cancelled") >= 1


def test_run_out_of_time_stops_its_tasks(invoke: Invoke, tmp_path: Path) -> None:
    with pytest.raises(RunTimeout):
        stalled(invoke, tmp_path, graphs.stalled, timeout=0.5)


def test_reader_that_stops_leaves_no_task_behind(tmp_path: Path) -> None:
    app = app_of(graphs.stalled)
    values: Any = {"numbers": [1, 2], "folder": str(tmp_path)}
    with suppress(RunCancelled):
        events = app.stream(values, "t", mode="events")
        for event in events:
            if event.type == "node_start" and event.node == "item":
                break
        getattr(events, "close")()  # noqa: B009 - streams are generators
    parts = app_of(graphs.squares).invoke({"numbers": [2]}, "u").state.get("parts", [])
    assert [part.number for part in parts] == [4]
