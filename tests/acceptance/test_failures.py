"""A run that fails says where it was: node, path, state; and never a value of the state."""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import threading
from collections.abc import Callable
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Command,
    Conflict,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    InvalidUpdate,
    MaxStepsExceeded,
    Retry,
    RunCancelled,
    RunTimeout,
    Send,
    StateGraph,
    StoreError,
    ThreadKey,
    Unavailable,
    UnserializableState,
    add,
)
from milecastle.errors import RoutingError
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing import Simulator
from tests.acceptance.running import Runner, Wrap

KEY = ThreadKey("default", "t")
SECRET = "s3cr3t"


class State(TypedDict):
    n: int
    v: NotRequired[str]
    w: NotRequired[Any]


class Failing(MemoryStore):
    """Raises ``error`` at the commit of this number."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__()
        self._left = number
        self._error = error

    def commit(self, batch: Batch) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error
        super().commit(batch)


def line(wrap: Wrap, store: Any = None, **nodes: Callable[..., Any]) -> App[State]:
    graph: StateGraph[State] = StateGraph(State)
    for name, function in nodes.items():
        graph.add_node(name, wrap(function))
    graph.add_edges(START, *nodes, END)
    return graph.compile(store=store)


def idle(state: Any) -> None:
    return None


def count(state: State) -> dict[str, Any]:
    return {"n": state["n"] + 1}


@pytest.mark.requirement("C2", "X4", api="StoreError")
@pytest.mark.parametrize("error", [Unavailable("the disk is gone"), OSError(28, "no space")])
def test_a_failed_save_says_where_the_run_was(run: Runner, wrap: Wrap, error: Exception) -> None:
    """Node, path, state, thread and run, whatever the store raised.

    Fails if the engine adds the facts to a ``RunError`` only, and if a driver throws what a
    store of somebody else raised as it is.
    """
    app = line(wrap, Failing(3, error), p=count, q=count)
    with pytest.raises(StoreError) as caught:
        run.invoke(app, {"n": 0}, "t")
    found = caught.value
    assert (found.node, found.path, found.state) == ("q", ("p", "q"), {"n": 2})
    assert (found.thread, found.step, found.run_id is not None) == ("t", 2, True)
    assert "thread 't'" in str(found)
    assert "node 'q'" in str(found)
    assert found is error or found.__cause__ is error
    again = pickle.loads(pickle.dumps(found))
    assert (again.node, again.path, str(again)) == (found.node, found.path, str(found))


@pytest.mark.requirement("X4", api="ExecutionError")
@pytest.mark.parametrize("stored", [True, False])
def test_failure_names_its_run_if_there_is_a_store(run: Runner, wrap: Wrap, stored: bool) -> None:
    """Without one it cannot be found by its id. Fails if an error of such a run has one."""

    def bad(state: State) -> None:
        raise ValueError("on purpose")

    with pytest.raises(ExecutionError) as caught:
        run.invoke(
            line(wrap, MemoryStore() if stored else None, bad=bad),
            {"n": 0},
            "t" if stored else None,
        )
    assert (caught.value.thread, caught.value.run_id is None) == (
        ("t", False) if stored else (None, True)
    )


@pytest.mark.requirement("S9", "X4", api="Conflict")
def test_a_conflict_says_where_the_run_was(run: Runner, wrap: Wrap) -> None:
    """Fails if the engine adds the facts to a ``RunError`` only."""
    store = MemoryStore()

    def q(state: State) -> dict[str, Any]:
        app.fork("t", at=1)
        return {"n": 9}

    app = line(wrap, store, p=count, q=q)
    with pytest.raises(Conflict) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert (caught.value.node, caught.value.path) == ("q", ("p", "q"))


@pytest.mark.requirement("X4", "X5", api="RunCancelled")
@pytest.mark.parametrize("kind", [RunCancelled, RunTimeout])
def test_a_stopped_run_says_where_it_was(run: Runner, wrap: Wrap, kind: type[Any]) -> None:
    """A cancellation and a timeout name the node that was about to run.

    Fails if the engine leaves ``node``, ``path`` and ``state`` out of what a driver threw in.
    """
    stop = threading.Event()

    def one(state: State) -> dict[str, Any]:
        if kind is RunCancelled:
            stop.set()
        else:
            threading.Event().wait(0.3)
        return {"n": 1}

    app = line(wrap, MemoryStore(), one=one, two=count)
    timeout = 0.1 if kind is RunTimeout else None
    with pytest.raises(kind) as caught:
        run.invoke(app, {"n": 0}, "t", options=ExecutionOptions(cancel=stop, timeout=timeout))
    error = caught.value
    assert error.node in ("one", "two")  # an async node is stopped while it runs
    assert error.path == ("one", "two")[: len(error.path)]
    assert error.path[-1] == error.node
    assert error.state["n"] == len(error.path) - 1
    assert "thread 't'" in str(error)


@pytest.mark.requirement("G8", "X5", api="RunCancelled")
def test_a_run_that_is_stopped_inside_a_subgraph_names_its_own_thread(run: Runner) -> None:
    """And the node that the subgraph is. Fails if parent and child share the reason."""
    stop = threading.Event()

    async def wait(state: State) -> None:
        stop.set()
        await asyncio.sleep(60)

    inner: StateGraph[State] = StateGraph(State)
    inner.add_node("deep", wait)
    inner.add_edges(START, "deep", END)
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("sub", inner.compile())
    graph.add_edges(START, "sub", END)
    app = graph.compile(store=MemoryStore())
    with pytest.raises(RunCancelled) as caught:
        run.invoke(app, {"n": 0}, "t", options=ExecutionOptions(cancel=stop))
    assert (caught.value.thread, caught.value.node) == ("t", "sub")
    assert "deep" not in str(caught.value)


@pytest.mark.requirement("X2", "X4", api="MaxStepsExceeded")
def test_the_step_limit_names_the_node_that_did_not_run(run: Runner, wrap: Wrap) -> None:
    """Fails if the guard does not hand the node to the error."""
    app = line(wrap, None, a=count, b=count)
    with pytest.raises(MaxStepsExceeded) as caught:
        run.invoke(app, {"n": 0}, options=ExecutionOptions(max_steps=1))
    assert (caught.value.node, caught.value.path) == ("b", ("a",))
    assert caught.value.state == {"n": 1}


# ---- reducers


def by_key(old: Any, update: Any) -> Any:
    raise KeyError("no such part")


def by_type(old: Any, update: Any) -> Any:
    raise TypeError("no such part")


def reduced(reducer: Any, *, branches: bool = False, routed: bool = False) -> StateGraph[Any]:
    state: Any = TypedDict("state", {"x": Annotated[int, reducer], "v": str}, total=False)
    graph: StateGraph[Any] = StateGraph(state)

    def write(state: Any) -> dict[str, Any]:
        return {} if routed else {"x": 2}

    def route(state: Any) -> Command[Any]:
        return Command(update={"x": 2}, goto=END)

    graph.add_node("n", write)
    graph.add_edge(START, "n")
    if branches:
        graph.add_node("m", idle)
        graph.add_edges(START, "m", END)
    if routed:
        graph.add_conditional_edges("n", route, [END])
    else:
        graph.add_edge("n", END)
    return graph


@pytest.mark.requirement("G6", "X4", api="ExecutionError")
@pytest.mark.parametrize("reducer", [by_key, by_type])
@pytest.mark.parametrize("how", [{}, {"branches": True}, {"routed": True}])
def test_a_reducer_that_raises_is_an_execution_error(
    run: Runner, reducer: Any, how: dict[str, bool]
) -> None:
    """Whatever it raises, on the update of a node, of a branch or of a router.

    Fails if only ``TypeError`` is caught where a reducer is called.
    """
    store = MemoryStore()
    app = reduced(reducer, **how).compile(store=store)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(app, {"x": 1}, "t")
    error = caught.value
    assert (error.node, error.channel, error.state) == ("n", "x", {"x": 1})
    assert type(error.cause) in (KeyError, TypeError)
    assert f"the reducer '{reducer.__name__}' of 'x' failed" in str(error)
    assert str(error).endswith(str(error.cause))
    failure = store.failure(KEY, error.run_id or "")
    assert failure is not None
    assert (failure.node, failure.failure_class) == ("n", "execution")


@pytest.mark.requirement("G6", "G7", api="InvalidUpdate")
def test_what_a_built_in_reducer_does_not_take_is_an_invalid_update(run: Runner) -> None:
    """The update is wrong and not the reducer; in a fan-out the error names the node.

    Fails if the error keeps the name of the task, ``work#1``.
    """
    state: Any = TypedDict("state", {"x": Annotated[int, add]})
    graph: StateGraph[Any] = StateGraph(state)

    def work(state: Any) -> dict[str, Any]:
        return {"x": "one"}

    graph.add_node("split", idle)
    graph.add_node("work", work)
    graph.add_edge(START, "split")
    graph.add_conditional_edges("split", lambda s: [Send("work", {})] * 2, ["work"])
    graph.add_edge("work", END)
    with pytest.raises(InvalidUpdate) as caught:
        run.invoke(graph.compile(), {"x": 1})
    assert (caught.value.node, caught.value.key) == ("work", "x")


@pytest.mark.requirement("G6", api="App.update_state")
def test_a_reducer_that_raises_on_a_caller_s_update_is_an_invalid_request(run: Runner) -> None:
    """An input, or ``update_state``. Fails if the exception of the reducer leaves the call."""
    app = reduced(by_key).compile(store=MemoryStore(), interrupt_before=["n"])
    run.invoke(app, {"x": 1}, "t")
    with pytest.raises(InvalidRequest, match="the reducer 'by_key' of 'x' failed with KeyError"):
        run.update_state(app, "t", {"x": 2})


# ---- messages


@pytest.mark.requirement("X4", api="ExecutionError")
def test_the_message_ends_with_that_of_the_cause(run: Runner, wrap: Wrap) -> None:
    """Also through a subgraph. Fails if ``str(error)`` names only the type of the cause."""

    def bad(state: State) -> None:
        raise ValueError("the plan has no end date")

    inner = line(wrap, None, deep=bad)
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("sub", inner)
    graph.add_edges(START, "sub", END)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(graph.compile(), {"n": 0})
    assert str(caught.value).endswith("[MC201]: the plan has no end date")
    assert str(caught.value).startswith("node 'sub' failed at step 1 with ExecutionError")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.requirement("R2", api="ExecutionError")
def test_a_cause_that_cannot_be_printed_is_recorded_by_its_type(run: Runner, wrap: Wrap) -> None:
    """Fails if ``str`` of the cause is called without a guard."""
    store = MemoryStore()

    def bad(state: State) -> None:
        raise Mute

    with pytest.raises(ExecutionError, match="failed at step 1 with Mute") as caught:
        run.invoke(line(wrap, store, bad=bad), {"n": 0}, "t")
    failure = store.failure(KEY, caught.value.run_id or "")
    assert failure is not None
    assert (failure.error_type, failure.message) == ("Mute", "")


def leading(goto: Any) -> Command[Any]:
    return Command(goto=goto)


GOTOS: dict[str, Callable[[str], Any]] = {
    "Command(goto=value)": leading,
    "Command(goto=[value])": lambda value: leading(["end", value]),
    "Command(goto=Send(value))": lambda value: leading(Send(value)),
    "Send(value)": Send,
    "[Send(value)]": lambda value: [Send(value)],
    "Command(goto={value})": lambda value: leading({value: 1}),
    "Command(goto=[[value]])": lambda value: leading([[value]]),
}


@pytest.mark.requirement("R2", "X4", api="Command")
@pytest.mark.parametrize("returned", GOTOS)
@pytest.mark.parametrize("branches", [1, 2])
def test_where_a_node_leads_is_not_quoted(
    run: Runner, caplog: pytest.LogCaptureFixture, returned: str, branches: int
) -> None:
    """What a node names as its successor may come from the state: it is in no message,
    failure record or log line. Fails if ``refuse_undeclared`` names the target."""
    store = MemoryStore()

    def lead(state: State) -> Any:
        return GOTOS[returned](state.get("v", ""))

    graph: StateGraph[State] = StateGraph(State)
    for name in ("a", "b")[:branches]:
        graph.add_node(name, lead if name == "a" else count, goto=["end"] if name == "a" else ())
        graph.add_edge(START, name)
        if name == "b":
            graph.add_edge("b", END)
    graph.add_node("end", idle)
    graph.add_edge("end", END)
    app = graph.compile(store=store, observers=["logging"])
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises((RoutingError, InvalidUpdate, ExecutionError)) as caught,
    ):
        run.invoke(app, {"n": 0, "v": SECRET}, "t")
    failure = store.failure(KEY, caught.value.run_id or "")
    assert failure is not None
    assert SECRET not in f"{caught.value}{caught.value!r}{failure!r}{caplog.text}"


class Unhashed:
    """A key that is not a name."""

    def __repr__(self) -> str:
        return SECRET


KEYS: dict[str, Callable[[], Any]] = {
    "of a dict": lambda: {"w": {SECRET: object()}},
    "deep in a value": lambda: {"w": {"x": [{SECRET: {"y": object()}}]}},
    "that is not a str": lambda: {"w": {Unhashed(): 1}},
    "of the update, not a str": lambda: {Unhashed(): 1},
}


@pytest.mark.requirement("X4", api="UnserializableState")
@pytest.mark.parametrize("returned", KEYS)
@pytest.mark.parametrize("branches", [1, 2])
def test_keys_inside_values_are_data_and_not_quoted(
    run: Runner, caplog: pytest.LogCaptureFixture, returned: str, branches: int
) -> None:
    """A message has the position of such a key: ``$.w[key 0]``.

    Seen to fail: the path in the message had the key, and an update's key its ``repr``.
    """
    store = MemoryStore()
    graph: StateGraph[State] = StateGraph(State)
    for name in ("a", "b")[:branches]:
        graph.add_node(name, (lambda state: KEYS[returned]()) if name == "a" else count)
        graph.add_edges(START, name, END)
    app = graph.compile(store=store, observers=["logging"])
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises((InvalidUpdate, UnserializableState)) as caught,
    ):
        run.invoke(app, {"n": 0}, "t")
    failures = [store.failure(KEY, record.run_id) for record in store.runs(KEY)]
    assert any(failures)
    assert SECRET not in f"{caught.value}{caught.value!r}{failures!r}{caplog.text}"


@pytest.mark.requirement("X4", api="InvalidUpdate")
def test_unknown_keys_of_an_update_are_names_and_quoted_bounded(run: Runner) -> None:
    """Escaped, at most 80 characters of each, a few of them.

    Seen to fail: the whole key, of any length, and every one of an input.
    """
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("a", lambda state: {"k\x1b\u202e" + 10_000 * "x": 1})
    graph.add_edges(START, "a", END)
    app = graph.compile()
    with pytest.raises(
        InvalidUpdate, match=r"gave the key 'k\\x1b\\u202ex{64}\.\.\.', which"
    ) as caught:
        run.invoke(app, {"n": 0})
    assert len(caught.value.key or "") == 10_003
    with pytest.raises(InvalidRequest, match="and 992 more") as refused:
        run.invoke(app, {f"key {number}": 1 for number in range(1000)})
    assert len(str(refused.value)) < 300


# ---- one seed, one course


@pytest.mark.requirement("X6", api="Retry")
def test_one_seed_is_one_course_with_retries_too() -> None:
    """The pause before a retry comes from the run's id, which a simulated clock makes.

    Fails if the jitter comes from the process's own random numbers.
    """

    def course() -> list[int]:
        times: list[int] = []

        def flaky(state: State) -> dict[str, Any]:
            times.append(simulator.clock.now())
            if len(times) < 5:
                raise OSError
            return {"n": 1}

        graph: StateGraph[State] = StateGraph(State)
        graph.add_node("flaky", flaky, retry=Retry(attempts=9, delay=10, jitter=1))
        graph.add_edges(START, "flaky", END)
        simulator = Simulator(graph.compile(store=MemoryStore()), seed=7)
        simulator.invoke({"n": 0}, "t")
        return times

    first = course()
    assert first == course()
    pauses = {later - earlier for earlier, later in itertools.pairwise(first)}
    assert len(pauses) == len(first) - 1, "each pause has its own jitter"
