"""X: safe execution. Limits, cycles, failures, cancellation."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict, cast

import pytest

from milecastle import (
    END,
    START,
    App,
    Command,
    CycleDetected,
    ExecutionConfig,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    MaxStepsExceeded,
    MilecastleError,
    RunCancelled,
    RunTimeout,
    Send,
    StateGraph,
    ThreadKey,
    append,
)
from milecastle.model.policies import CycleDetection
from milecastle.stores.memory import MemoryStore
from tests.acceptance.running import CountingStore, Recorder, Runner, SlowStore, Wrap

KEY = ThreadKey("default", "t")


class Count(TypedDict):
    n: int
    log: Annotated[list[str], append]


def count(state: Count) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def idle(state: Count) -> dict[str, Any]:
    return {}


def loop(function: Callable[..., Any], until: int) -> StateGraph[Count]:
    """One node that comes round until ``n`` has reached ``until``."""
    graph: StateGraph[Count] = StateGraph(Count)
    graph.add_node("node", function)
    graph.add_edge(START, "node")
    graph.add_edge("node", END, when=lambda state: state["n"] >= until)
    graph.add_edge("node", "node")
    return graph


# -- X1 ------------------------------------------------------------------------------------


@pytest.mark.requirement("X1", api="ExecutionConfig")
def test_the_defaults_of_a_run() -> None:
    """Fifty steps, cycle detection on, a window of twenty nodes, no timeout."""
    config = ExecutionConfig()
    assert (config.max_steps, config.cycle_detection, config.cycle_window) == (50, True, 20)
    assert config.timeout is None
    assert loop(count, 1).compile().graph.config == config


@pytest.mark.requirement("X1", api="StateGraph.with_default_config")
def test_the_graph_sets_defaults_and_a_call_overrides_them_field_by_field(
    run: Runner, wrap: Wrap
) -> None:
    """What the call leaves out stays as the graph set it."""
    graph = loop(wrap(count), until=30)
    graph.with_default_config(ExecutionConfig(max_steps=5, cycle_detection="strict"))
    app = graph.compile()
    with pytest.raises(CycleDetected):
        run.invoke(app, {"n": 0})
    relaxed = ExecutionOptions(cycle_detection=False)
    with pytest.raises(MaxStepsExceeded) as caught:
        run.invoke(app, {"n": 0}, options=relaxed)
    assert caught.value.max == 5
    both = ExecutionOptions(cycle_detection=False, max_steps=30)
    assert run.invoke(app, {"n": 0}, options=both)["n"] == 30
    narrow = ExecutionOptions(cycle_window=1)
    with pytest.raises(CycleDetected):
        run.invoke(app, {"n": 0}, options=narrow)


@pytest.mark.requirement("X1", api="ExecutionOptions")
@pytest.mark.parametrize(
    "options",
    [
        ExecutionOptions(max_steps=0),
        ExecutionOptions(cycle_window=0),
        ExecutionOptions(timeout=0),
        ExecutionOptions(cycle_detection="loose"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(run: Runner, options: ExecutionOptions) -> None:
    """Nothing is begun with it."""
    app = loop(count, until=1).compile(store="memory://")
    with pytest.raises(InvalidRequest):
        run.invoke(app, {"n": 0}, "t", options=options)
    assert run.history(app, "t") == []


# -- X2 ------------------------------------------------------------------------------------


@pytest.mark.requirement("X1", api="ExecutionConfig")
def test_none_means_no_limit_and_a_call_can_lift_one(run: Runner, wrap: Wrap) -> None:
    """``None`` in the graph's config; ``"unlimited"`` in a call, where ``None`` sets nothing.

    Fails if ``ExecutionConfig`` refuses ``None``, and if ``overridden`` passes the word on.
    """
    graph = loop(wrap(count), until=200)
    with pytest.raises(MaxStepsExceeded):
        run.invoke(graph.compile(), {"n": 0})
    unlimited = ExecutionOptions(max_steps="unlimited")
    assert run.invoke(graph.compile(), {"n": 0}, options=unlimited)["n"] == 200
    graph.with_default_config(ExecutionConfig(max_steps=None))
    assert run.invoke(graph.compile(), {"n": 0})["n"] == 200
    with pytest.raises(MaxStepsExceeded, match="max_steps=3"):
        run.invoke(graph.compile(), {"n": 0}, options=ExecutionOptions(max_steps=3))
    graph.with_default_config(ExecutionConfig(max_steps=None, timeout=1e-9))
    with pytest.raises(RunTimeout):
        run.invoke(graph.compile(), {"n": 0})
    endless = ExecutionOptions(timeout="unlimited")
    assert run.invoke(graph.compile(), {"n": 0}, options=endless)["n"] == 200


@pytest.mark.requirement("X1", api="ExecutionOptions")
def test_options_of_a_call_reach_subgraphs(run: Runner, wrap: Wrap) -> None:
    """A subgraph kept its own limit, although its error said to raise it in the call."""
    inner: StateGraph[Count] = StateGraph(Count)
    inner.add_node("inner", loop(wrap(count), until=60).compile())
    inner.add_edges(START, "inner", END)
    graph: StateGraph[Count] = StateGraph(Count)
    graph.add_node("outer", inner.compile())
    graph.add_edges(START, "outer", END)
    for store in (None, "memory://"):
        app = graph.compile(store=store)
        with pytest.raises(ExecutionError):
            run.invoke(app, {"n": 0}, "a")
        for steps, thread in ((100, "b"), ("unlimited", "c")):
            options = ExecutionOptions(max_steps=cast("Any", steps))
            assert run.invoke(app, {"n": 0}, thread, options=options)["n"] == 60
        with pytest.raises(ExecutionError, match="max_steps=5"):
            run.invoke(app, {"n": 0}, "d", options=ExecutionOptions(max_steps=5))


@pytest.mark.requirement("X2", api="MaxStepsExceeded")
def test_the_step_limit_is_checked_before_a_node_runs(run: Runner, wrap: Wrap) -> None:
    """The node beyond the limit does not run, and the error names limit and step."""
    calls: list[int] = []

    def node(state: Count) -> dict[str, Any]:
        calls.append(state["n"])
        return {"n": state["n"] + 1}

    app = loop(wrap(node), until=100).compile(store="memory://")
    options = ExecutionOptions(max_steps=3)
    with pytest.raises(MaxStepsExceeded) as caught:
        run.invoke(app, {"n": 0}, "t", options=options)
    assert (caught.value.max, caught.value.reached, calls) == (3, 4, [0, 1, 2])
    assert (caught.value.thread, caught.value.run_id) == ("t", run.state(app, "t").run_id)
    assert run.state(app, "t").state["n"] == 3


@pytest.mark.requirement("X2", api="ExecutionOptions.max_steps")
def test_a_run_of_exactly_the_limit_completes(run: Runner, wrap: Wrap) -> None:
    """The limit itself is allowed; a resume has the whole limit again."""
    app = loop(wrap(count), until=6).compile(store="memory://")
    assert run.invoke(app, {"n": 0}, options=ExecutionOptions(max_steps=6))["n"] == 6
    with pytest.raises(MaxStepsExceeded):
        run.invoke(app, {"n": 0}, "t", options=ExecutionOptions(max_steps=5))
    assert run.resume(app, "t", options=ExecutionOptions(max_steps=1))["n"] == 6


# -- X3 ------------------------------------------------------------------------------------


@pytest.mark.requirement("X3", api="CycleDetected")
def test_a_node_that_comes_back_while_nothing_changed_is_a_cycle(run: Runner, wrap: Wrap) -> None:
    """By default progress is looked at, not repetition."""
    with pytest.raises(CycleDetected) as caught:
        run.invoke(loop(wrap(idle), until=1).compile(), {"n": 0})
    assert (caught.value.node, caught.value.recent) == ("node", ("node", "node"))
    assert "the state did not change" in str(caught.value)
    assert run.invoke(loop(wrap(count), until=49).compile(), {"n": 0})["n"] == 49


@pytest.mark.requirement("X3", api="ExecutionConfig.cycle_detection")
@pytest.mark.parametrize(("detection", "stops"), [(True, False), ("strict", True), (False, False)])
def test_strict_detection_stops_any_repeat_and_false_stops_none(
    run: Runner, wrap: Wrap, detection: CycleDetection, stops: bool
) -> None:
    """A loop that makes progress is stopped by strict detection alone."""
    options = ExecutionOptions(cycle_detection=detection)
    app = loop(wrap(count), until=5).compile()
    if stops:
        with pytest.raises(CycleDetected, match="strict"):
            run.invoke(app, {"n": 0}, options=options)
    else:
        assert run.invoke(app, {"n": 0}, options=options)["n"] == 5


@pytest.mark.requirement("X3", api="ExecutionConfig.cycle_detection")
def test_without_detection_only_the_step_limit_ends_an_idle_loop(run: Runner, wrap: Wrap) -> None:
    """``False`` is off."""
    options = ExecutionOptions(cycle_detection=False)
    with pytest.raises(MaxStepsExceeded):
        run.invoke(loop(wrap(idle), until=1).compile(), {"n": 0}, options=options)


@pytest.mark.requirement("X3", api="ExecutionConfig.cycle_window")
@pytest.mark.parametrize(("window", "stops"), [(3, True), (2, False)])
def test_only_the_last_nodes_within_the_window_are_looked_at(
    run: Runner, wrap: Wrap, window: int, stops: bool
) -> None:
    """A ring of three nodes is seen by a window of three and not by one of two."""
    graph: StateGraph[Count] = StateGraph(Count)
    for name in ("a", "b", "c"):
        graph.add_node(name, wrap(idle))
    graph.add_edges(START, "a", "b", "c")
    graph.add_edge("c", "a", when=lambda state: True)
    graph.add_edge("c", END)
    options = ExecutionOptions(cycle_window=window, max_steps=12)
    with pytest.raises(CycleDetected if stops else MaxStepsExceeded) as caught:
        run.invoke(graph.compile(), {"n": 0}, options=options)
    if isinstance(caught.value, CycleDetected):
        assert caught.value.recent == ("a", "b", "c", "a")


@pytest.mark.requirement("X3", api="CycleDetected")
def test_a_change_anywhere_on_the_way_round_is_progress(run: Runner, wrap: Wrap) -> None:
    """The state has to be unchanged since the node's own last visit."""
    graph: StateGraph[Count] = StateGraph(Count)
    graph.add_node("idle", wrap(idle))
    graph.add_node("count", wrap(count))
    graph.add_edges(START, "idle", "count")
    graph.add_edge("count", END, when=lambda state: state["n"] >= 4)
    graph.add_edge("count", "idle")
    assert run.invoke(graph.compile(), {"n": 0})["n"] == 4


@pytest.mark.requirement("X3", api="CycleDetected")
def test_writing_an_equal_value_is_not_progress(run: Runner, wrap: Wrap) -> None:
    """What counts is the value and not that somebody wrote it."""

    def same(state: Count) -> dict[str, Any]:
        return {"n": state["n"]}

    with pytest.raises(CycleDetected):
        run.invoke(loop(wrap(same), until=1).compile(), {"n": 0})


@pytest.mark.requirement("X3", api="Event")
def test_every_revisit_emits_an_event(run: Runner, wrap: Wrap) -> None:
    """Also the one that ends the run."""
    seen = Recorder()
    run.invoke(loop(wrap(count), until=4).compile(observers=[seen]), {"n": 0})
    told = [(event.node, event.step, event.data) for event in seen.events if event.type == "cycle"]
    assert told == [
        ("node", step, {"visits": step, "iteration": step, "path_length": step})
        for step in (2, 3, 4)
    ]

    seen = Recorder()
    with pytest.raises(CycleDetected):
        run.invoke(loop(wrap(idle), until=1).compile(observers=[seen]), {"n": 0})
    assert seen.types[-2:] == ["cycle", "graph_failed"]
    assert (seen.events[-2].node, seen.events[-2].step) == ("node", 2)


def calls_of(app: App[Count], steps: int, options: ExecutionOptions) -> int:
    """How many Python and C functions a run calls: a cost that no busy machine changes."""
    calls = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        app.invoke({"n": -steps}, options=options)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.requirement("X3", api="ExecutionConfig.cycle_window")
def test_the_check_costs_the_same_at_every_step_and_for_every_window() -> None:
    """O(1): neither the length of the run nor the window makes a step dearer."""
    app = loop(count, until=0).compile()

    def cost(steps: int, window: int) -> float:
        options = ExecutionOptions(max_steps=5_000, cycle_window=window)
        return calls_of(app, steps, options) / steps

    assert cost(2_000, 20) == pytest.approx(cost(200, 20), rel=0.05)
    assert cost(2_000, 1_000) == pytest.approx(cost(2_000, 20), rel=0.01)


@pytest.mark.requirement("X7", api="ExecutionConfig")
def test_the_checks_add_no_call_to_a_step() -> None:
    """A step with every check on calls no more functions than one with cycle detection off."""
    app = loop(count, until=0).compile()
    on = calls_of(app, 1_000, ExecutionOptions(max_steps=1_000))
    off = calls_of(app, 1_000, ExecutionOptions(max_steps=1_000, cycle_detection=False))
    assert on <= off * 1.01


@pytest.mark.requirement("X7", api="ExecutionConfig")
def test_the_checks_take_no_time_that_can_be_measured() -> None:
    """The fastest of several runs is as fast with the checks as without, within noise."""
    app = loop(count, until=0).compile()

    def fastest(options: ExecutionOptions) -> float:
        times: list[float] = []
        for _ in range(7):
            began = time.perf_counter()
            app.invoke({"n": -1_000}, options=options)
            times.append(time.perf_counter() - began)
        return min(times)

    checked = ExecutionOptions(max_steps=1_000)
    unchecked = ExecutionOptions(max_steps=1_000, cycle_detection=False)
    assert any(fastest(checked) < fastest(unchecked) * 1.5 for _ in range(5))


# -- X4 ------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def failing(wrap: Wrap, store: Any = None, observers: Any = ()) -> App[Count]:
    """``a`` counts, ``b`` fails until it is fixed."""
    graph: StateGraph[Count] = StateGraph(Count)

    def b(state: Count) -> dict[str, Any]:
        raise Broken("on purpose")

    graph.add_node("a", wrap(count))
    graph.add_node("b", wrap(b))
    graph.add_edges(START, "a", "b", END)
    return graph.compile(store=store, observers=observers)


@pytest.mark.requirement("X4", api="ExecutionError")
@pytest.mark.parametrize("stored", [True, False])
def test_a_failing_node_surfaces_with_all_that_is_known(
    run: Runner, wrap: Wrap, stored: bool
) -> None:
    """Node, step, the path so far, the state before the node, and the cause."""
    app = failing(wrap, store="memory://" if stored else None)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(app, {"n": 0}, "t")
    error = caught.value
    assert (error.node, error.step, error.path) == ("b", 2, ("a", "b"))
    assert error.state == {"n": 1, "log": []}
    assert type(error.cause) is Broken
    assert error.__cause__ is error.cause
    assert "node 'b' failed at step 2 with Broken" in str(error)
    assert error.code == "MC201"
    assert (error.thread, error.run_id is not None) == (("t", True) if stored else (None, False))


@pytest.mark.requirement("X4", api="ExecutionError")
def test_the_error_survives_pickling(run: Runner, wrap: Wrap) -> None:
    """What a worker raised can be raised again elsewhere."""
    with pytest.raises(ExecutionError) as caught:
        run.invoke(failing(wrap), {"n": 0})
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.node, again.step, again.path, again.state) == (
        *("b", 2, ("a", "b")),
        {"n": 1, "log": []},
    )
    assert str(again) == str(caught.value)


@pytest.mark.requirement("X4", api="ExecutionError")
def test_a_failing_branch_surfaces_alike_and_the_first_by_declaration_is_raised(
    run: Runner, wrap: Wrap
) -> None:
    """Of several failures in one step the others are named in a note."""
    graph: StateGraph[Count] = StateGraph(Count)

    def fail(state: Count, name: str) -> None:
        raise Broken(name)

    for name in ("a", "b", "c"):
        graph.add_node(name, wrap(idle if name == "b" else fail))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(graph.compile(store="memory://"), {"n": 3}, "t")
    error = caught.value
    assert (error.node, error.step, error.path) == ("a", 1, ("a", "b", "c"))
    assert (type(error.cause), error.state) == (Broken, {"n": 3, "log": []})
    assert error.__notes__ == ["these also failed in the same step: c"]


@pytest.mark.requirement("X4", api="ExecutionError")
@pytest.mark.parametrize("branches", [1, 2])
def test_an_error_of_ours_raised_by_a_node_is_that_node_s_failure(
    run: Runner, wrap: Wrap, branches: int
) -> None:
    """A node may run its own app; what that raises is a cause like any other."""
    graph: StateGraph[Count] = StateGraph(Count)

    def fail(state: Count) -> None:
        raise InvalidRequest("from inside")

    for name in ("a", "b")[:branches]:
        graph.add_node(name, wrap(fail))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(graph.compile(), {"n": 0})
    assert (caught.value.node, type(caught.value.cause)) == ("a", InvalidRequest)


@pytest.mark.requirement("X4", api="ExecutionError")
def test_a_branch_that_cancels_itself_has_failed(run: Runner) -> None:
    """Nobody asked the run to stop."""
    graph: StateGraph[Count] = StateGraph(Count)

    async def leave(state: Count) -> None:
        raise asyncio.CancelledError

    for name in ("a", "b"):
        graph.add_node(name, leave if name == "a" else idle)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(graph.compile(), {"n": 0})
    assert isinstance(caught.value.cause, asyncio.CancelledError)


@pytest.mark.requirement("X4", api="ExecutionError")
def test_a_router_that_raises_surfaces_with_the_node_that_it_follows(
    run: Runner, wrap: Wrap
) -> None:
    """The state is the one that the router was given, which the node had left."""
    graph: StateGraph[Count] = StateGraph(Count)
    graph.add_node("a", wrap(count))

    def route(state: Count) -> str:
        raise Broken("on purpose")

    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", wrap(route), ["a", END])
    with pytest.raises(ExecutionError, match="routing from node 'a' failed at step 1") as caught:
        run.invoke(graph.compile(), {"n": 0})
    error = caught.value
    assert (error.node, error.step, error.path) == ("a", 1, ("a",))
    assert (error.state, type(error.cause)) == ({"n": 1, "log": []}, Broken)


@pytest.mark.requirement("X4", api="Store.failure")
def test_a_failure_is_recorded_with_the_run(run: Runner, wrap: Wrap) -> None:
    """The run's record says failed, and its failure says where and with what."""
    store = MemoryStore()
    app = failing(wrap, store=store)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(app, {"n": 0}, "t")
    run_id = caught.value.run_id
    assert run_id is not None
    record, failure = store.run(KEY, run_id), store.failure(KEY, run_id)
    assert record is not None
    assert failure is not None
    assert (record.status, record.ended_at is not None) == ("failed", True)
    assert (failure.node, failure.error_type, failure.message) == ("b", "Broken", "on purpose")
    assert (failure.failure_class, failure.resumable) == ("execution", True)
    assert any("in b" in frame for frame in failure.traceback)
    assert run.state(app, "t").status == "failed"


SECRET = "swordfish-4711"


class Safe(TypedDict):
    n: int
    secret: str
    any: Any
    log: Annotated[list[str], append]


def raising(state: Safe) -> dict[str, Any]:
    raise Broken("on purpose")


def unstorable(state: Safe) -> dict[str, Any]:
    return {"any": {"here": [state["secret"], threading.Lock()]}}


def wrong_type(state: Safe) -> Any:
    return {"n": state["secret"]}


def no_update(state: Safe) -> Any:
    return state["secret"]


def not_appended(state: Safe) -> Any:
    return {"log": state["secret"]}


def going_astray(state: Safe) -> dict[str, Any]:
    return {"n": 7}


@pytest.mark.requirement("X4", api="MilecastleError")
@pytest.mark.parametrize(
    "node",
    [raising, unstorable, wrong_type, no_update, not_appended, going_astray, idle],
    ids=lambda node: node.__name__,
)
@pytest.mark.parametrize("branches", [1, 2])
def test_no_value_of_the_state_is_in_a_message_a_log_or_a_failure_record(
    run: Runner, node: Any, branches: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Paths and types are reported; values never are."""
    caplog.set_level(logging.DEBUG)
    store = CountingStore()
    graph: StateGraph[Safe] = StateGraph(Safe)
    names = ("node", "other")[:branches]
    for name in names:
        graph.add_node(name, node if name == "node" else idle)
        graph.add_edge(START, name)
        graph.add_conditional_edges(
            name,
            lambda state: state["secret"] if state.get("n") == 7 else "node",
            ["node", END],
        )
    app = graph.compile(store=store, observers=["logging"])
    with pytest.raises(MilecastleError) as caught:
        run.invoke(app, {"secret": SECRET}, "t")
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in "".join(getattr(error, "__notes__", []))
        error = error.__cause__ or error.__context__
    assert SECRET not in caplog.text
    failures = [batch.failure for batch in store.batches if batch.failure]
    assert len(failures) == 1
    assert SECRET not in str(failures[0])
    assert caplog.records


# -- X5 ------------------------------------------------------------------------------------


def cancelling(wrap: Wrap, store: Any, event: threading.Event) -> App[Count]:
    """Counts forever; the third visit asks the run to stop."""

    def node(state: Count) -> dict[str, Any]:
        if state["n"] == 2:
            event.set()
        return {"n": state["n"] + 1}

    return loop(wrap(node), until=100).compile(store=store)


@pytest.mark.requirement("X5", api="ExecutionOptions.cancel")
def test_an_event_ends_the_run_between_two_steps(run: Runner, wrap: Wrap) -> None:
    """What was committed stays, the run is cancelled, and resume continues from there."""
    event = threading.Event()
    store = MemoryStore()
    app = cancelling(wrap, store, event)
    with pytest.raises(RunCancelled) as caught:
        run.invoke(app, {"n": 0}, "t", options=ExecutionOptions(cancel=event))
    snapshot = run.state(app, "t")
    assert (snapshot.state["n"], snapshot.status) == (3, "cancelled")
    assert (caught.value.thread, caught.value.run_id) == ("t", snapshot.run_id)
    failure = store.failure(KEY, snapshot.run_id)
    assert failure is not None
    assert (failure.error_type, failure.resumable) == ("RunCancelled", True)
    options = ExecutionOptions(max_steps=2)
    with pytest.raises(MaxStepsExceeded):
        run.resume(app, "t", options=options)
    assert run.state(app, "t").state["n"] == 5


@pytest.mark.requirement("X5", api="ExecutionOptions.cancel")
def test_an_event_that_is_set_already_ends_the_run_before_any_node(run: Runner, wrap: Wrap) -> None:
    """The input is committed, and no node runs."""
    event = threading.Event()
    event.set()
    app = cancelling(wrap, "memory://", event)
    with pytest.raises(RunCancelled):
        run.invoke(app, {"n": 2}, "t", options=ExecutionOptions(cancel=event))
    assert [known.source for known in run.history(app, "t")] == ["input"]


@pytest.mark.requirement("X5", api="ExecutionOptions.cancel")
@pytest.mark.parametrize("branches", [1, 2])
def test_an_event_ends_the_run_inside_an_async_node(run: Runner, branches: int) -> None:
    """A node that waits forever is cancelled, and may clean up."""
    event = threading.Event()
    cleaned: list[str] = []

    async def wait(state: Count, name: str) -> None:
        event.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(name)

    graph: StateGraph[Count] = StateGraph(Count)
    names = ["a", "b"][:branches]
    for name in names:
        graph.add_node(name, wait)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store="memory://")
    began = time.monotonic()
    with pytest.raises(RunCancelled):
        run.invoke(app, {"n": 0}, "t", options=ExecutionOptions(cancel=event))
    assert time.monotonic() - began < 30
    assert sorted(cleaned) == names
    snapshot = run.state(app, "t")
    assert (snapshot.status, snapshot.next) == ("cancelled", tuple(names))


@pytest.mark.requirement("X5", api="ExecutionOptions.timeout")
def test_a_timeout_ends_the_run_between_two_steps(run: Runner) -> None:
    """A sync node cannot be stopped; the run stops before the next one."""

    def slow(state: Count) -> dict[str, Any]:
        time.sleep(0.02)
        return {"n": state["n"] + 1}

    graph = loop(slow, until=100_000)
    graph.with_default_config(ExecutionConfig(timeout=1.0, max_steps=100_000))
    app = graph.compile(store="memory://")
    with pytest.raises(RunTimeout, match=r"1 s") as caught:
        run.invoke(app, {"n": 0}, "t")
    assert (caught.value.seconds, caught.value.thread) == (1.0, "t")
    snapshot = run.state(app, "t")
    assert snapshot.status == "failed"
    assert snapshot.state["n"] >= 1


@pytest.mark.requirement("X5", api="ExecutionOptions.timeout")
@pytest.mark.parametrize("where", ["node", "branches", "router"])
def test_a_timeout_reaches_inside_async_functions(run: Runner, where: str) -> None:
    """A node, a parallel step and a router that wait forever are cut off."""

    async def wait(state: Count) -> Any:
        await asyncio.sleep(60)

    graph: StateGraph[Count] = StateGraph(Count)
    names = ["a", "b"] if where == "branches" else ["a"]
    for name in names:
        graph.add_node(name, idle if where == "router" else wait)
        graph.add_edge(START, name)
    if where == "router":
        graph.add_conditional_edges("a", wait, [END])
    else:
        for name in names:
            graph.add_edge(name, END)
    app = graph.compile(store="memory://")
    began = time.monotonic()
    with pytest.raises(RunTimeout):
        run.invoke(app, {"n": 0}, "t", options=ExecutionOptions(timeout=0.05))
    assert time.monotonic() - began < 30
    assert run.state(app, "t").next == tuple(names)


@pytest.mark.requirement("X5", api="ExecutionOptions.timeout")
def test_a_run_within_its_time_is_not_disturbed(run: Runner, wrap: Wrap) -> None:
    """Timeout and cancel event may both be given."""
    options = ExecutionOptions(timeout=60, cancel=threading.Event())
    app = loop(wrap(count), until=5).compile()
    assert run.invoke(app, {"n": 0}, options=options)["n"] == 5


@pytest.mark.requirement("X5", api="App.ainvoke")
@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("make", [CountingStore, SlowStore])
def test_a_cancelled_task_ends_the_run_where_it_is(
    branches: int, make: type[CountingStore]
) -> None:
    """The task ends as cancelled, the node may clean up, and what was committed stays."""
    store = make()
    cleaned: list[str] = []

    async def scenario() -> None:
        inside = asyncio.Event()

        async def wait(state: Count, name: str) -> None:
            inside.set()
            try:
                await asyncio.sleep(60)
            finally:
                cleaned.append(name)

        graph: StateGraph[Count] = StateGraph(Count)
        graph.add_node("first", count)
        graph.add_edge(START, "first")
        for name in ("a", "b")[:branches]:
            graph.add_node(name, wait)
            graph.add_edge("first", name)
            graph.add_edge(name, END)
        app = graph.compile(store=store)
        task = asyncio.create_task(app.ainvoke({"n": 0}, "t"))
        await asyncio.wait_for(inside.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        snapshot = await app.astate("t")
        assert (snapshot.status, snapshot.state["n"], snapshot.step) == ("cancelled", 1, 1)

    asyncio.run(scenario())
    assert sorted(cleaned) == ["a", "b"][:branches]
    assert [entry.source for entry in store.written] == ["input", "step"]


@pytest.mark.requirement("X5", api="App.ainvoke")
def test_a_task_cancelled_during_a_commit_waits_until_its_outcome_is_known() -> None:
    """The batch that is on its way is written whole, and nothing after it."""
    inside, go = threading.Event(), threading.Event()

    class Gate(SlowStore):
        def commit(self, batch: Any) -> None:
            if self.batches:
                inside.set()
                assert go.wait(60)
            super().commit(batch)

    store = Gate()
    app = loop(count, until=5).compile(store=store)

    async def scenario() -> None:
        task = asyncio.create_task(app.ainvoke({"n": 0}, "t"))
        await asyncio.to_thread(inside.wait, 5)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert [entry.seq for entry in store.written] == [1, 2]
    assert app.resume("t")["n"] == 5


@pytest.mark.requirement("X5", api="App.invoke")
def test_a_keyboard_interrupt_is_recorded_as_cancelled() -> None:
    """Ctrl-C ends a run like a cancellation, and is raised as itself."""

    def node(state: Count) -> None:
        raise KeyboardInterrupt

    app = loop(node, until=5).compile(store="memory://")
    with pytest.raises(KeyboardInterrupt):
        app.invoke({"n": 0}, "t")
    assert app.state("t").status == "cancelled"


@pytest.mark.requirement("X3", api="CycleDetected")
@pytest.mark.parametrize("items", [1, 200])
def test_node_that_sends_itself_other_items_is_no_cycle(run: Runner, items: int) -> None:
    """The items were not looked at. One that sends itself the same item is still a cycle."""
    graph: StateGraph[Count] = StateGraph(Count)

    def countdown(state: Count) -> Command[Literal["countdown", "__end__"]]:
        n = state["n"]
        if n == 0:
            return Command(update={"log": ["lift off"]}, goto=END)
        return Command(goto=[Send("countdown", {"n": max(0, n - 1)})])

    graph.add_node("countdown", countdown)
    graph.add_conditional_edges(
        START, lambda state: [Send("countdown", {"n": state["n"]})] * items, ["countdown"]
    )
    assert run.invoke(graph.compile(), {"n": 5})["log"] == ["lift off"] * items
    same: StateGraph[Count] = StateGraph(Count)

    def again(state: Count) -> Command[Literal["again", "__end__"]]:
        return Command(goto=Send("again", {"n": state["n"]}))

    same.add_node("again", again)
    same.add_edge(START, "again")
    with pytest.raises(CycleDetected):
        run.invoke(same.compile(), {"n": 5})
