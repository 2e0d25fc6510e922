"""Calls of flows: out of time, retried, too late, failed in a part, and refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event
from typing import Any, TypedDict, cast

import pytest

from milecastle import (
    END,
    START,
    App,
    ExecutionError,
    InvalidRequest,
    ResumeRefused,
    Retry,
    StateGraph,
    StepFailed,
    TimedOut,
    Timeout,
    first,
    flow,
    gather,
    interrupt,
    join,
    receive,
    sleep,
    spawn,
    step,
)
from milecastle.app.with_store import with_store
from milecastle.ports.batch import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing.clock import ManualClock


class State(TypedDict, total=False):
    n: int


def result_of(app: App[Any], **given: Any) -> Any:
    return app.invoke(given, thread="t").state["result"]


def refused(function: Callable[..., Any], *, match: str) -> None:
    """Run a flow of this function, which makes a call that is refused."""
    with pytest.raises(ExecutionError) as failed:
        flow(function).compile(store=MemoryStore()).invoke({}, thread="t")
    assert isinstance(failed.value.cause, InvalidRequest)
    assert match in str(failed.value.cause)


# ---- steps


@step(timeout=5)
def quick(number: int) -> int:
    if number == 13:
        raise LookupError("none")
    return number


@step(timeout=Timeout(run=5))
async def aquick(number: int) -> int:
    if number == 13:
        raise TimeoutError("theirs")
    return number


def test_a_step_that_ends_in_time_returns_or_fails_as_without_a_timeout() -> None:
    """Fails if the outcome of the thread that calls it is dropped."""

    @flow
    def steps() -> list[Any]:
        with pytest.raises(StepFailed) as failed:
            quick(13)
        return [quick(1), failed.value.error_type]

    assert result_of(steps.compile(store=MemoryStore())) == [1, "LookupError"]


def test_an_async_step_out_of_time_is_told_from_one_that_raised_a_timeout() -> None:
    """Fails if a ``TimeoutError`` of the step's own is taken for the end of its time."""

    @flow
    async def steps() -> list[Any]:
        with pytest.raises(StepFailed) as own:
            await aquick(13)
        with pytest.raises(StepFailed) as late:
            await step(asyncio.sleep, 5, timeout=0.02)
        return [await aquick(1), own.value.error_type, late.value.error_type]

    found = result_of(steps.compile(store=MemoryStore()))
    assert found == [1, "TimeoutError", "NodeTimeout"]


def test_a_failed_async_step_is_tried_again_after_its_delay() -> None:
    """Fails if the wait blocks the loop: the part beside it would end after it."""
    order: list[str] = []

    async def flaky() -> None:
        order.append("flaky")
        if order.count("flaky") == 1:
            raise ConnectionError("refused")

    async def beside() -> None:
        await asyncio.sleep(0.01)
        order.append("beside")

    @flow
    async def steps() -> None:
        retried = step(flaky, retry=Retry(attempts=2, delay=0.05))
        await gather(retried, step(beside))

    app = steps.compile(store=MemoryStore())
    assert asyncio.run(app.ainvoke({}, thread="t")).status == "completed"
    assert order == ["flaky", "beside", "flaky"]


def test_a_declared_step_is_called_in_place_under_another_name() -> None:
    """Fails if its policy is lost, or the call is recorded under the function's name."""

    @step(name="known", retry=Retry(attempts=2, delay=0))
    def flaky(number: int) -> int:
        seen.append(number)
        if len(seen) == 1:
            raise ConnectionError("refused")
        return number

    @flow
    def steps() -> int:
        return int(step(flaky, 3)) + int(step(flaky, 4, name="named"))

    seen: list[int] = []
    app = steps.compile(store=MemoryStore())
    assert result_of(app) == 7
    assert seen == [3, 3, 4]
    assert [entry.note for entry in app.history("t") if entry.note] == ["2 named", "1 known"]
    assert repr(flaky) == "<step 'known'>"


def test_a_flow_called_by_a_flow_is_a_part_of_it() -> None:
    """Fails if its calls are not recorded with those of the caller."""

    @flow
    def inner(number: int) -> int:
        return quick(number)

    @flow
    def outer() -> int:
        return inner(1) + inner(2)

    app = outer.compile(store=MemoryStore())
    assert result_of(app) == 3
    assert [entry.note for entry in app.history("t") if entry.note] == ["2 quick", "1 quick"]
    assert repr(inner) == "<flow 'inner'>"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_flow_without_a_thread_records_nothing(is_async: bool) -> None:
    """Fails if its calls need a log: it runs as an ordinary function would."""

    @flow
    def plain() -> list[int]:
        return [quick(1), *gather(lambda: quick(2), lambda: quick(3))]

    @flow
    async def on_loop() -> list[int]:
        return [await aquick(1), *await gather(aquick(2), aquick(3))]

    app: App[Any] = (on_loop if is_async else plain).compile()
    assert app.invoke({}).state["result"] == [1, 2, 3]


def test_a_cancelled_flow_keeps_the_result_whose_commit_was_under_way() -> None:
    """Fails if the commit is not awaited: the next one would not follow it."""
    called: list[int] = []
    may_commit, has_begun = Event(), Event()

    class Slow(MemoryStore):
        blocking = True  # called in a thread, as a store with a disk is

        def commit(self, batch: Batch) -> None:
            if batch.entries and batch.entries[-1].note == "2 note":
                has_begun.set()
                assert may_commit.wait(10)
            super().commit(batch)

    def note(number: int) -> int:
        called.append(number)
        return number

    @flow
    async def steps() -> list[int]:
        return [await step(note, 1), await step(note, 2), await step(note, 3)]

    app = steps.compile(store=Slow())

    async def cancel() -> None:
        running = asyncio.ensure_future(app.ainvoke({}, thread="t"))
        assert await asyncio.to_thread(has_begun.wait, 10)
        running.cancel()
        await asyncio.sleep(0.02)
        may_commit.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    assert app.state("t").status == "cancelled"
    assert app.resume("t").state["result"] == [1, 2, 3]
    assert called == [1, 2, 3]


# ---- waits


def test_a_sleep_keeps_its_end_when_the_flow_runs_before_it() -> None:
    """Fails if a part that still sleeps begins its sleep again."""

    @flow
    def waits() -> Any:
        return gather(lambda: sleep(10), lambda: receive("go", int))

    store, clock = MemoryStore(), ManualClock(1_700_000_000_000_000)
    app = with_store(waits.compile(store=store), store, clock=clock)
    app.invoke({}, thread="t")
    clock.advance(6)
    app.send("t", 7, "go")
    assert app.resume("t").status == "sleeping"
    clock.advance(5)
    assert app.resume("t").state["result"] == [None, 7]


def test_a_message_of_another_type_is_refused() -> None:
    """Fails if ``receive(topic, type)`` returns what was sent unread."""

    @flow
    def waits() -> int:
        return int(receive("go", int))

    app = waits.compile(store=MemoryStore())
    app.invoke({}, thread="t")
    app.send("t", "seven", "go")
    with pytest.raises(ExecutionError, match="message 1, of topic 'go',"):
        app.resume("t")


def test_a_question_without_an_answer_in_time_has_a_default_or_fails() -> None:
    """Fails if the time that passed is not recorded as the question's outcome."""

    @flow
    def asks() -> list[Any]:
        found = [interrupt("one?", answer=str, within=5, otherwise="nobody")]
        try:
            interrupt("two?", within=5)
        except TimedOut:
            found.append("late")
        return found

    store, clock = MemoryStore(), ManualClock(1_700_000_000_000_000)
    app = with_store(asks.compile(store=store), store, clock=clock)
    app.invoke({}, thread="t")
    clock.advance(6)
    app.resume("t")
    clock.advance(6)
    assert app.resume("t").state["result"] == ["nobody", "late"]


def test_a_child_that_does_not_end_in_time_is_an_error() -> None:
    """Fails if ``join`` returns without a result."""

    graph: StateGraph[State] = StateGraph(State, name="asks")
    graph.add_node("wait", lambda state: {"n": interrupt("well?", answer=int)})
    graph.add_edges(START, "wait", END)
    store, clock = MemoryStore(), ManualClock(1_700_000_000_000_000)
    child = graph.compile(store=store)

    @flow
    def parent() -> str:
        try:
            join(spawn(child, {"n": 1}, "child"), timeout=5)
        except TimedOut as error:
            return error.message
        return ""

    app = with_store(parent.compile(store=store), store, clock=clock)
    app.invoke({}, thread="t")
    clock.advance(6)
    assert "no end of child 'child'" in app.resume("t").state["result"]


# ---- parts


def test_the_first_part_that_fails_decides_and_is_recorded() -> None:
    """Fails if the failure is not recorded: the part would be called again after the question."""
    called: list[int] = []

    def fail() -> None:
        called.append(1)
        raise LookupError("none")

    @flow
    def parts() -> str:
        try:
            first(lambda: receive("never"), lambda: step(fail), lambda: quick(1))
        except StepFailed as error:
            interrupt("go on?")
            return error.error_type
        return ""

    app = parts.compile(store=MemoryStore())
    app.invoke({}, thread="t")
    assert app.resume("t", answer=1).state["result"] == "LookupError"
    assert called == [1]


def test_code_that_no_longer_fails_where_a_part_did_is_refused() -> None:
    """Fails if the results of the other parts, which were not recorded, are taken for made."""

    def declared(is_caught: bool) -> App[Any]:
        def part() -> int:
            try:
                return quick(13)
            except StepFailed:
                if is_caught:
                    return 0
                raise

        @flow(name="f")
        def parts() -> Any:
            try:
                gather(lambda: quick(1), part)
            except StepFailed:
                interrupt("go on?")

        return parts.compile(store=store)

    store = MemoryStore()
    declared(is_caught=False).invoke({}, thread="t")
    with pytest.raises(ResumeRefused, match="which failed, and the code now continues"):
        declared(is_caught=True).resume("t", answer=1)


# ---- refused


def test_a_flow_of_too_many_calls_is_stopped() -> None:
    """Broken before: calls that were recorded in this run were not counted, so it never ended."""

    @flow(max_calls=3)
    def endless() -> None:
        while True:
            quick(1)

    app = endless.compile(store=MemoryStore())
    with pytest.raises(ExecutionError, match="has made more than 3 calls: return again"):
        app.invoke({}, thread="t")


def without_await() -> Any:
    return aquick(1)


def without_a_store() -> Any:
    return receive("go")


def test_calls_without_what_they_need_are_refused() -> None:
    """Fails if one of them waits forever, or fails with an error of the machinery."""
    refused(lambda: receive(()), match="receive() needs a topic")
    refused(lambda: first(), match="first() needs at least one part")
    refused(lambda: spawn("any", {}, on_cancel=cast("Any", "keep")), match="on_cancel= takes")
    with pytest.raises(ExecutionError) as failed:
        flow(without_await).compile().invoke({})
    assert "a flow that calls an async step is async, too" in str(failed.value.cause)
    with pytest.raises(ExecutionError, match="messages need a store that has mailboxes"):
        flow(without_a_store).compile().invoke({})


def test_an_async_call_awaited_in_a_step_is_refused() -> None:
    """Fails if it is taken for the next call of the flow, which did not make it."""

    async def wait(call: Any) -> Any:
        return await call

    @flow
    async def steps() -> Any:
        return await step(wait, aquick(1))

    with pytest.raises(ExecutionError, match="awaited outside of it"):
        steps.compile(store=MemoryStore()).invoke({}, thread="t")


@pytest.mark.parametrize("call", [lambda: receive("go"), lambda: spawn("any", {})])
def test_a_flow_as_a_subgraph_neither_spawns_nor_receives(call: Callable[[], Any]) -> None:
    """Fails if a message is looked for in the subgraph's thread, to which nobody can send."""

    @flow(name="inner")
    def calls(n: int) -> None:
        call()

    graph: StateGraph[State] = StateGraph(State, name="outer")
    graph.add_node("inner", calls.compile())
    graph.add_edges(START, "inner", END)
    with pytest.raises(ExecutionError, match="flow 'inner' is a subgraph"):
        graph.compile(store=MemoryStore()).invoke({"n": 1}, thread="t")


def test_flows_and_steps_that_cannot_be_are_refused_when_they_are_declared() -> None:
    """Fails if ``*args`` become a channel, or a parameter takes the place of the result."""

    def many(*numbers: int) -> None: ...

    def own(result: int) -> None: ...

    with pytest.raises(TypeError, match=r"flow 'many' has \*numbers"):
        flow(many)
    with pytest.raises(TypeError, match="a parameter 'result'"):
        flow(own)
    with pytest.raises(TypeError, match="it has no idle="):
        step(timeout=Timeout(idle=3))


def test_a_flow_may_name_types_that_are_defined_later() -> None:
    """Fails if an annotation that cannot be resolved ends the declaration."""

    def early(order: Any) -> Any:
        return late(order)

    early.__annotations__["order"] = "Later"
    app = flow(early).compile(store=MemoryStore())

    def late(order: Any) -> Any:
        return order

    assert result_of(app, order=5) == 5
