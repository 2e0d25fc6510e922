"""X6: retries, counted durably; fallbacks; what becomes of siblings when one fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Literal, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    DefinitionError,
    ExecutionConfig,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    InvalidUpdate,
    Retry,
    StateGraph,
    Store,
    append,
    interrupt,
)
from milecastle.app.clock import SystemClock
from milecastle.errors import AttemptsExhausted
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ManualClock, Simulator, with_store
from tests.acceptance.running import Recorder
from tests.acceptance.scenarios.calling import Caller, Calls, Paint, die_at_work, of_state


class Work(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


NOW = Retry(attempts=3, delay=0)


def one(node: Any, store: Store | None, **policy: Any) -> App[Work]:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", node, **policy)
    graph.add_edges(START, "work", END)
    return graph.compile(store=store)


class Breaking:
    """A node that fails so many times."""

    def __init__(self, times: int, error: type[Exception] = ValueError) -> None:
        self.left = times
        self.error = error
        self.attempts: list[int] = []

    def __call__(self, state: Any, ctx: Context) -> dict[str, Any]:
        self.attempts.append(ctx.attempt)
        if self.left:
            self.left -= 1
            raise self.error("no")
        return {"log": [f"attempt {ctx.attempt}"]}

    def node(self, state: Any, ctx: Context) -> dict[str, Any]:
        return self(state, ctx)


@pytest.mark.requirement("X6", api="Retry")
def test_a_node_is_tried_again_until_it_works(call: Caller, store: Store, paint: Paint) -> None:
    breaking = Breaking(2)
    assert call.invoke(one(paint(breaking.node), store, retry=NOW), {})["log"] == ["attempt 3"]
    assert breaking.attempts == [1, 2, 3]


@pytest.mark.requirement("X6", api="Retry")
def test_after_the_last_attempt_the_run_fails_and_a_resume_counts_again(
    call: Caller, store: Store, paint: Paint
) -> None:
    breaking = Breaking(4)
    app = one(paint(breaking.node), store, retry=NOW)
    error = call.fails(app, {})
    assert isinstance(error.__cause__, ValueError)
    assert breaking.attempts == [1, 2, 3]
    assert call.resume(app)["log"] == ["attempt 2"]


def test_a_number_is_a_policy() -> None:
    breaking = Breaking(1)
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", breaking.node, retry=2)
    graph.add_edges(START, "work", END)
    app = graph.compile(store=MemoryStore())
    sim = Simulator(app)
    assert sim.invoke({}, "t")["log"] == ["attempt 2"]


@pytest.mark.requirement("X6", api="Retry")
def test_only_the_errors_that_are_named_are_worth_another_attempt(
    call: Caller, store: Store
) -> None:
    policy = Retry(attempts=3, delay=0, on=(KeyError, OSError))
    refused, tried = Breaking(1, ValueError), Breaking(1, FileNotFoundError)
    call.fails(one(refused.node, store, retry=policy), {})
    assert refused.attempts == [1]
    assert call.invoke(one(tried.node, store, retry=policy), {}, "u")["log"] == ["attempt 2"]


def test_an_update_that_does_not_fit_is_not_tried_again(call: Caller, store: Store) -> None:
    calls = Calls()

    def typo(state: Any) -> dict[str, Any]:
        calls("typo")
        update = {"log": ["x"]}
        return {name[::-1]: value for name, value in update.items()}

    with pytest.raises(InvalidUpdate):
        call.invoke(one(typo, store, retry=NOW), {})
    assert calls.count("typo") == 1


def test_retry_emits_an_event(call: Caller, store: Store) -> None:
    recorder, breaking = Recorder(), Breaking(2)
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", breaking.node, retry=NOW)
    graph.add_edges(START, "work", END)
    call.invoke(graph.compile(store=store, observers=[recorder]), {})
    retries = [event for event in recorder.events if event.type == "retry"]
    assert [event["attempt"] for event in retries] == [2, 3]
    starts = [event for event in recorder.events if event.type == "node_start"]
    assert len(starts) == 3


@pytest.mark.parametrize("chance", [0.0, 0.25, 1.0])
@pytest.mark.requirement("X6", api="Retry")
def test_the_pause_grows_up_to_a_bound_and_jitter_only_takes_off(chance: float) -> None:
    policy = Retry(delay=1, factor=3, longest=10, jitter=0.5)
    pauses = [policy.pause(attempt, chance) for attempt in (1, 2, 3, 4)]
    whole = [1, 3, 9, 10]
    assert pauses == [pytest.approx(length * (1 - 0.5 * chance)) for length in whole]
    assert Retry(delay=2, jitter=0).pause(1, chance) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"delay": -1}, {"factor": 0.5}, {"jitter": 1.5}, {"longest": -1}],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Retry(**wrong)


def test_the_run_waits_as_long_as_the_policy_says() -> None:
    breaking, clock = Breaking(2), ManualClock()
    app = one(breaking.node, MemoryStore(), retry=Retry(delay=100, longest=500, jitter=0))
    sim = Simulator(app, clock=clock)
    before = clock.now()
    assert sim.invoke({}, "t")["log"] == ["attempt 3"]
    waited = (clock.now() - before) / 1_000_000
    assert 300 <= waited < 310


def test_items_of_a_fan_out_that_are_tried_at_the_same_moment_do_not_mix_up() -> None:
    made: dict[int, int] = {}

    def each(state: Any) -> dict[str, Any]:
        number = state["item"]
        made[number] = made.get(number, 0) + 1
        if made[number] <= number % 4:
            raise ValueError("no")
        return {"log": [str(number)]}

    for seed in range(30):
        made.clear()
        graph: StateGraph[Work] = StateGraph(Work)
        graph.add_node("each", each, retry=Retry(attempts=4, delay=1, factor=1, jitter=0))
        graph.map(START, "each", over=lambda state: range(12), item="item")
        graph.add_edge("each", END)
        sim = Simulator(graph.compile(store=MemoryStore()), seed=seed)
        assert sim.invoke({}, "t")["log"] == [str(number) for number in range(12)]


def test_question_is_not_a_failed_attempt(call: Caller, store: Store, paint: Paint) -> None:
    def asks(state: Any) -> dict[str, Any]:
        return {"log": [interrupt(str(n), answer=str) for n in range(4)]}

    app = one(paint(asks), store, retry=Retry(attempts=2, delay=0))
    result = call.invoke(app, {})
    for answer in "abcd":
        result = call.resume(app, answer=answer)
    assert result["log"] == ["a", "b", "c", "d"]


def test_a_question_does_not_give_attempts_back_either(call: Caller, store: Store) -> None:
    calls = Calls()

    def breaks(state: Any) -> dict[str, Any]:
        answer = interrupt("q", answer=str)
        calls(answer)
        raise ValueError("no")

    app = one(breaks, store, retry=NOW)
    call.invoke(app, {})
    call.fails(app, None, answer="yes")
    assert calls.count("yes") == 3


# ---- over crashes


@pytest.mark.parametrize("deaths", [1, 2])
@pytest.mark.requirement("X6", api="Retry")
def test_attempts_are_counted_over_crashes(call: Caller, store: Store, deaths: int) -> None:
    breaking = Breaking(0)
    app = one(breaking.node, store, retry=NOW)
    for _ in range(deaths):
        die_at_work(app, {})
    assert call.invoke(app, {})["log"] == [f"attempt {deaths + 1}"]


@pytest.mark.requirement("X6", api="Retry")
def test_node_that_kills_its_process_is_not_retried_forever(call: Caller, store: Store) -> None:
    breaking = Breaking(0)
    app = one(breaking.node, store, retry=NOW)
    for _ in range(3):
        die_at_work(app, {})
    error = call.fails(app, {})
    assert isinstance(error.__cause__, AttemptsExhausted)
    assert breaking.attempts == []
    assert call.resume(app)["log"] == ["attempt 1"]  # a person decided to try again


DEADLY = """
    import os, sys
    from typing import Annotated, TypedDict
    from milecastle import END, START, ExecutionError, Retry, StateGraph, append
    from milecastle.errors import AttemptsExhausted

    class Work(TypedDict, total=False):
        n: int

    def deadly(state):
        with open(sys.argv[2], "a") as file:
            file.write("x")
        os._exit(9)

    graph = StateGraph(Work)
    graph.add_node("deadly", deadly, retry=Retry(attempts=3, delay=0))
    graph.add_edges(START, "deadly", END)
    app = graph.compile(store="sqlite:///" + sys.argv[1])
    try:
        app.invoke({"n": 1}, "t")
    except ExecutionError as error:
        print(type(error.__cause__).__name__)
"""


def test_a_real_process_that_dies_each_time_gives_up(tmp_path: Path) -> None:
    script, log = tmp_path / "deadly.py", tmp_path / "log"
    script.write_text(dedent(DEADLY))
    command = [sys.executable, str(script), str(tmp_path / "s.db"), str(log)]
    ends = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(4)]
    assert [done.returncode for done in ends] == [9, 9, 9, 0]
    assert ends[-1].stdout == "AttemptsExhausted\n"
    assert log.read_text() == "xxx"


# ---- falling back


def plan_b(state: Any, ctx: Context) -> dict[str, Any]:
    told = [f"{name}: {kind}" for name, (kind, _) in ctx.failures.items()]
    return {"log": ["plan b", *told]}


def with_fallback(node: Any, store: Store, **policy: Any) -> App[Work]:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", node, on_error="plan b", **policy)
    graph.add_node("next", of_state(lambda state: {"log": ["next"]}))
    graph.add_node("plan b", plan_b)
    graph.add_edges(START, "work", "next", END)
    graph.add_edge("plan b", "next")
    return graph.compile(store=store)


def test_a_fallback_runs_instead_of_what_comes_next_and_knows_why(
    call: Caller, store: Store, paint: Paint
) -> None:
    app = with_fallback(paint(Breaking(9).node), store)
    result = call.invoke(app, {})
    assert result["log"] == ["plan b", "work: ValueError", "next"]
    assert call.invoke(with_fallback(Breaking(0).node, store), {}, "u")["log"][-1] == "next"


def test_a_fallback_runs_after_the_last_attempt(call: Caller, store: Store) -> None:
    breaking = Breaking(9)
    result = call.invoke(with_fallback(breaking.node, store, retry=NOW), {})
    assert breaking.attempts == [1, 2, 3]
    assert result["log"][0] == "plan b"


def test_a_fallback_is_not_a_way_round_a_question(call: Caller, store: Store) -> None:
    def asks(state: Any) -> dict[str, Any]:
        return {"log": [interrupt("q", answer=str)]}

    app = with_fallback(asks, store, retry=NOW)
    assert call.invoke(app, {}).status == "interrupted"
    assert call.resume(app, answer="yes")["log"] == ["yes", "next"]


def test_a_fallback_that_is_cut_short_still_knows_why(call: Caller, store: Store) -> None:
    broken = [True]

    def plan_b(state: Any, ctx: Context) -> dict[str, Any]:
        if broken:
            raise KeyError("no")
        return {"log": list(ctx.failures)}

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", Breaking(9).node, on_error="plan b")
    graph.add_node("plan b", plan_b)
    graph.add_edges(START, "work", END)
    graph.add_edge("plan b", END)
    app = graph.compile(store=store)
    call.fails(app, {})
    broken.clear()
    assert call.resume(app)["log"] == ["work"]


def test_a_fallback_beside_a_failure_is_stored_with_its_reason(call: Caller, store: Store) -> None:
    """Fails if its outcome is not stored, or is stored without the reason."""
    breaking, broken = Breaking(9), [True]

    def beside(state: Any) -> None:
        if broken:
            raise KeyError("no")

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", breaking.node, on_error="plan b")
    graph.add_node("beside", beside)
    graph.add_node("plan b", plan_b)
    graph.add_edges(START, "work", END)
    graph.add_edges(START, "beside", END)
    graph.add_edge("plan b", END)
    app = graph.compile(store=store)
    call.fails(app, {})
    broken.clear()
    assert call.resume(app)["log"] == ["plan b", "work: ValueError"]
    assert breaking.attempts == [1]


def test_a_fallback_beside_a_router_that_raised_still_knows_why(call: Caller, store: Store) -> None:
    """Fails if the reason is forgotten when the edges of the step are evaluated again."""
    broken = [True]

    def router(state: Any) -> str:
        if broken:
            raise KeyError("no")
        return END

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", Breaking(9).node, on_error="plan b")
    graph.add_node("beside", of_state(lambda state: None))
    graph.add_node("plan b", plan_b)
    graph.add_edges(START, "work", END)
    graph.add_edge(START, "beside")
    graph.add_conditional_edges("beside", router, [END])
    graph.add_edge("plan b", END)
    app = graph.compile(store=store)
    call.fails(app, {})
    broken.clear()
    assert call.resume(app)["log"] == ["plan b", "work: ValueError"]


def test_one_fallback_for_failed_items_while_the_others_continue(
    call: Caller, store: Store
) -> None:
    def each(state: Any) -> dict[str, Any]:
        if state["item"] % 2:
            raise ValueError("odd")
        return {"log": [str(state["item"])]}

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("each", each, on_error="mend")
    graph.add_node("mend", of_state(lambda state: {"log": ["fixed"]}))
    graph.add_node("join", of_state(lambda state: {"log": ["joined"]}), defer=True)
    graph.map(START, "each", over=lambda state: range(4), item="item")
    graph.add_edges("each", "join", END)
    graph.add_edge("mend", "join")
    assert call.invoke(graph.compile(store=store), {})["log"] == ["0", "2", "fixed", "joined"]


def test_fallback_that_is_not_a_node_is_found_when_compiling() -> None:
    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("work", Breaking(0).node, on_error="nowhere")
    graph.add_edges(START, "work", END)
    with pytest.raises(DefinitionError, match="nowhere"):
        graph.compile()


# ---- siblings


def siblings(
    fails: Any, others: dict[str, Any], store: Store, policy: Literal["finish", "cancel"]
) -> App[Work]:
    graph: StateGraph[Work] = StateGraph(Work)
    for name, node in {"fails": fails, **others}.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    graph.with_default_config(ExecutionConfig(sibling_failure=policy))
    return graph.compile(store=store)


def test_siblings_of_a_node_that_fails_finish_and_are_not_repeated(
    call: Caller, store: Store, paint: Paint
) -> None:
    calls, breaking = Calls(), Breaking(1)

    def slow(state: Any) -> dict[str, Any]:
        time.sleep(0.01)
        calls("slow")
        return {"log": ["slow"]}

    app = siblings(paint(breaking.node), {"slow": paint(slow)}, store, "finish")
    call.fails(app, {})
    assert calls.made == ["slow"]
    result = call.resume(app)
    assert calls.made == ["slow"]
    assert "slow" in result["log"]


def test_siblings_that_can_be_cancelled_are(call: Caller, store: Store) -> None:
    """Fails if a sibling that was asked to stop counts as another failure."""
    calls = Calls()

    async def fails(state: Any) -> None:
        raise ValueError("no")

    async def slow(state: Any) -> dict[str, Any]:
        calls("started")
        try:
            await asyncio.sleep(120)
        except asyncio.CancelledError:
            calls("cancelled")
            raise
        return {"log": ["slow"]}

    app = siblings(fails, {"slow": slow}, store, "cancel")
    before = time.monotonic()
    error = call.fails(app, {})
    assert error.node == "fails"
    assert not getattr(error, "__notes__", [])
    assert time.monotonic() - before < 60
    assert calls.made in (["started", "cancelled"], [])
    assert app.state("t").status == "failed"


def test_a_cancelled_fan_out_starts_no_more_items(call: Caller, store: Store) -> None:
    calls = Calls()

    def each(state: Any) -> dict[str, Any]:
        calls(state["item"])
        raise ValueError("no")

    graph: StateGraph[Work] = StateGraph(Work)
    graph.add_node("each", each, limit=2)
    graph.map(START, "each", over=lambda state: range(50), item="item")
    graph.add_edge("each", END)
    app = graph.compile(store=store)
    call.fails(app, {}, options=ExecutionOptions(sibling_failure="cancel"))
    assert len(calls.made) <= 4
    call.fails(app, {}, "u")
    assert len(calls.made) >= 50


def test_subgraph_beside_a_failing_node_is_stopped_and_continues_later(
    call: Caller, store: Store
) -> None:
    calls, gate, breaking = Calls(), threading.Event(), Breaking(1)

    def failing(state: Any, ctx: Context) -> dict[str, Any]:
        try:
            return breaking(state, ctx)
        finally:
            gate.set()

    def first(state: Any) -> dict[str, Any]:
        gate.wait(5)
        time.sleep(0.02)
        calls("first")
        return {"log": ["first"]}

    def second(state: Any) -> dict[str, Any]:
        calls("second")
        return {"log": ["second"]}

    inner: StateGraph[Work] = StateGraph(Work)
    inner.add_node("first", first)
    inner.add_node("second", second)
    inner.add_edges(START, "first", "second", END)
    app = siblings(failing, {"child": inner.compile()}, store, "cancel")
    call.fails(app, {})
    assert calls.count("second") == 0
    result = call.resume(app)
    assert result["log"][-2:] == ["first", "second"]
    assert calls.count("second") == 1


def test_the_first_failure_is_raised_and_names_the_others(call: Caller, store: Store) -> None:
    app = siblings(Breaking(9).node, {"too": Breaking(9).node}, store, "finish")
    with pytest.raises(ExecutionError) as raised:
        call.invoke(app, {})
    assert raised.value.node == "fails"
    assert any("too" in note for note in raised.value.__notes__)


class Falling(SystemClock):
    """A clock that is set back by an hour whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._hours = 0

    def now(self) -> int:
        self._hours += 1
        return super().now() - self._hours * 3_600_000_000


def test_clock_that_is_set_back_does_not_prolong_the_pause(
    call: Caller, store: Store, paint: Paint
) -> None:
    """The run waited until the wall clock had caught up."""
    app = one(paint(Breaking(1).node), store, retry=Retry(delay=0.01, jitter=0))
    app = with_store(app, store, clock=Falling())
    assert call.invoke(app, {}, options=ExecutionOptions(timeout=20))["log"] == ["attempt 2"]
