"""Nodes receive messages: in order, the same after each restart, consumed by the step's commit."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Timer
from typing import Annotated, Any, TypedDict, cast
from unittest.mock import patch

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Conflict,
    Context,
    ExecutionConfig,
    ExecutionError,
    InvalidRequest,
    Keyring,
    ResumeRefused,
    Retry,
    Send,
    StateGraph,
    Store,
    ThreadKey,
    TimedOut,
    append,
    current,
    interrupt,
)
from milecastle.errors import Unavailable
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore
from tests.acceptance.fleet.working import work
from tests.acceptance.running import Runner, Wrap

KEY = ThreadKey("default", "t")


@dataclasses.dataclass
class Order:
    id: int


class Trip(TypedDict):
    log: Annotated[list[Any], append]


def line(store: Store | None, *nodes: Callable[..., Any], **options: Any) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip, name="trip", topics=options.pop("topics", None))
    policy = options.pop("policy", {})
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node, **policy)
    graph.add_edges(START, *(f"n{number}" for number in range(len(nodes))), END)
    return graph.compile(store=store, **options)


def two(state: Trip, ctx: Context) -> dict[str, Any]:
    first = ctx.receive("go")
    return {"log": [first, ctx.receive("go")]}


async def atwo(state: Trip, ctx: Context) -> dict[str, Any]:
    first = await ctx.areceive("go")
    return {"log": [first, await ctx.areceive("go")]}


def start() -> dict[str, Any]:
    return {"log": []}


def values(app: App[Trip]) -> list[Any]:
    return [one.value for one in app.mailbox("t")]


@pytest.fixture(params=[two, atwo], ids=["sync", "async"])
def node(request: pytest.FixtureRequest, run: Runner) -> Callable[..., Any]:
    if request.param is atwo and run.name == "blocking":
        pytest.skip("an async node needs an event loop")
    return request.param  # type: ignore[no-any-return]


@pytest.mark.requirement("M2")
def test_messages_sent_before_any_code_waits_are_received_in_order(
    store: Store, run: Runner
) -> None:
    """The webhook that comes before the question. Fails if only waiting nodes get messages."""

    def early(state: Trip, ctx: Context) -> dict[str, Any]:
        for number in (1, 2):
            app.send("t", number, "go")
        return {}

    app = line(store, early, two)
    result = run.invoke(app, start(), "t")
    assert (result.status, result.state["log"]) == ("completed", [1, 2])
    assert not app.mailbox("t")


def test_a_node_waits_and_receives_the_same_again(
    store: Store, run: Runner, node: Callable[..., Any]
) -> None:
    """Neither is consumed before both are there. Fails if a message is consumed on receipt."""
    app = line(store, node)
    result = run.invoke(app, start(), "t")
    assert (result.status, result.wake_at, result.next) == ("sleeping", None, ("n0",))
    with pytest.raises(ResumeRefused, match="waits for a message of topic 'go'"):
        run.resume(app, "t")
    app.send("t", 0, "other")
    with pytest.raises(ResumeRefused):
        run.resume(app, "t")
    app.send("t", 1, "go")
    assert run.resume(app, "t").status == "sleeping"
    assert values(app) == [0, 1]
    with pytest.raises(ResumeRefused):
        run.resume(app, "t")
    app.send("t", 2, "go")
    assert run.resume(app, "t").state["log"] == [1, 2]
    assert values(app) == [0]


def test_the_same_input_resumes_a_thread_that_has_its_message(store: Store, run: Runner) -> None:
    app = line(store, two)
    run.invoke(app, start(), "t")
    assert run.invoke(app, start(), "t").status == "sleeping"
    for number in (1, 2):
        app.send("t", number, "go")
    assert run.invoke(app, start(), "t").state["log"] == [1, 2]


@pytest.mark.requirement("M2")
def test_workers_wake_a_thread_for_its_topic_only(store: Store, run: Runner) -> None:
    """Fails if the index row has no waiting topics, or a wake-up leaves its time."""
    app = line(store, two)
    app.submit(start(), "t")
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert (row.status, row.due_at, row.waiting_topics) == ("sleeping", None, (("go", 0),))
    run.call(app.send, app.asend, "t", 0, "other")
    assert due(store) is None
    run.call(app.send, app.asend, "t", 1, "go")
    assert due(store) is not None
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert (row.status, row.due_at, row.waiting_topics) == ("sleeping", None, (("go", 2),))
    app.send("t", 2, "go")
    work(app)
    assert app.wait("t", timeout=10).state["log"] == [1, 2]
    row = store.thread(KEY)
    assert row is not None
    assert (row.status, row.due_at, row.waiting_topics) == ("completed", None, ())


def due(store: Store) -> int | None:
    row = store.thread(KEY)
    assert row is not None
    return row.due_at


def test_wait_returns_for_a_thread_that_waits_for_a_message(store: Store, run: Runner) -> None:
    """As for a question: somebody has to act. Fails if every sleeping thread is waited for."""
    app = line(store, two)
    handle = app.submit(start(), "t")
    work(app)
    if run.name == "blocking":
        assert handle.result(timeout=30).status == "sleeping"
    else:
        assert asyncio.run(handle.aresult()).status == "sleeping"
    app.send("t", 1, "go")
    with pytest.raises(TimeoutError):
        app.wait("t", timeout=0)


def test_a_wake_up_whose_message_was_discarded_leaves_no_time(store: Store) -> None:
    """Fails if the worker releases the thread with a growing delay, forever."""
    app = line(store, two)
    app.submit(start(), "t")
    work(app)
    number = app.send("t", 1, "go").number
    seq = app.state("t").seq
    assert due(store) is not None
    app.discard("t", number)
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert (row.status, row.due_at, row.worker) == ("sleeping", None, "")
    assert app.state("t").seq == seq
    for value in (2, 3):
        app.send("t", value, "go")
    work(app)
    assert app.wait("t", timeout=10).state["log"] == [2, 3]


def test_a_retry_whose_message_was_discarded_waits_for_another(store: Store) -> None:
    """Was broken: the worker refused the thread, with a growing delay, forever."""

    def picky(state: Trip, ctx: Context) -> dict[str, Any]:
        found = ctx.receive("go")
        if found == "bad":
            raise ValueError("not this one")
        return {"log": [found]}

    app = line(store, picky, retry_runs=Retry(attempts=3, delay=0.2, jitter=0.0))
    app.submit(start(), "t")
    work(app)
    number = app.send("t", "bad", "go").number
    work(app)
    assert app.state("t").status == "failed"
    app.discard("t", number)
    time.sleep(0.3)
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert (row.status, row.due_at, row.worker) == ("sleeping", None, "")
    app.send("t", "good", "go")
    work(app)
    assert app.wait("t", timeout=10).state["log"] == ["good"]


def test_a_queued_run_whose_message_was_discarded_waits_for_another(store: Store) -> None:
    """Was broken: the worker refused the thread, with a growing delay, forever."""
    app = line(store, two)
    app.submit(start(), "t")
    work(app)
    number = app.send("t", 1, "go").number
    app.cancel("t")
    assert app.retry("t").status == "queued"
    app.discard("t", number)
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert (row.status, row.due_at, row.worker) == ("sleeping", None, "")
    for value in (2, 3):
        app.send("t", value, "go")
    work(app)
    assert app.wait("t", timeout=10).state["log"] == [2, 3]


@pytest.mark.requirement("M1")
def test_a_retried_node_receives_the_same_messages(store: Store, run: Runner) -> None:
    """Fails if the messages of a failed attempt are not given back."""
    seen: list[Any] = []

    def fails_once(state: Trip, ctx: Context) -> dict[str, Any]:
        found = [ctx.receive("go"), ctx.receive("go")]
        seen.append(found)
        if len(seen) < 2:
            raise ValueError("not yet")
        return {"log": found}

    def early(state: Trip) -> dict[str, Any]:
        for number in (1, 2):
            app.send("t", number, "go")
        return {}

    app = line(store, early, fails_once, policy={"retry": Retry(attempts=2, delay=0.0)})
    assert run.invoke(app, start(), "t").state["log"] == [1, 2]
    assert seen == [[1, 2], [1, 2]]


@pytest.mark.requirement("M1")
def test_a_run_that_failed_after_receiving_has_consumed_nothing(store: Store, run: Runner) -> None:
    """Fails if the failure's batch consumes what the failed step received."""
    broken = [True]

    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        found = ctx.receive("go")
        if broken:
            raise ValueError("broken")
        return {"log": [found]}

    app = line(store, node)
    run.invoke(app, start(), "t")
    app.send("t", 1, "go")
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    assert values(app) == [1]
    broken.clear()
    assert run.resume(app, "t").state["log"] == [1]
    assert not values(app)


def test_a_cancelled_run_leaves_its_messages_to_the_retry(store: Store) -> None:
    app = line(store, two)
    app.submit(start(), "t")
    work(app)
    app.send("t", 1, "go")
    app.cancel("t")
    assert values(app) == [1]
    app.send("t", 2, "go")
    app.retry("t")
    work(app)
    assert app.wait("t", timeout=10).state["log"] == [1, 2]


def test_a_completed_thread_keeps_messages_for_its_next_run(store: Store) -> None:
    def plain(state: Trip) -> dict[str, Any]:
        return {"log": ["ran"]}

    def receives(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.receive("go")]}

    app = line(store, plain)
    app.submit(start(), "t")
    work(app)
    assert app.send("t", 1, "go").status == "completed"
    assert due(store) is None
    again = line(store, receives)
    again.invoke({"log": ["next"]}, "t")
    assert again.state("t").state["log"] == ["ran", "next", 1]


def test_parallel_tasks_receive_one_message_each(store: Store, run: Runner, wrap: Wrap) -> None:
    """Fails if two tasks of a step are given one message, or a finished task's is given again."""

    def work_on(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.receive("go")]}

    async def awork_on(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [await ctx.areceive("go")]}

    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    graph.add_node("work", awork_on if run.name == "asynchronous" else work_on)
    graph.add_conditional_edges(START, lambda state: [Send("work", {})] * 4, ["work"])
    graph.add_edge("work", END)
    app = graph.compile(store=store)
    assert run.invoke(app, start(), "t").status == "sleeping"
    for number in (1, 2):
        app.send("t", number, "go")
    assert run.resume(app, "t").status == "sleeping"
    assert values(app) == [1, 2]  # the step has not ended
    for number in (3, 4):
        app.send("t", number, "go")
    result = run.resume(app, "t")
    assert sorted(result.state["log"]) == [1, 2, 3, 4]
    assert not values(app)


def test_a_discarded_message_of_a_finished_task_does_not_block_its_step(store: Store) -> None:
    """Fails if the step's commit consumes what an operator discarded: refused, forever."""

    def takes(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.receive("go")]}

    def asks(state: Trip) -> dict[str, Any]:
        return {"log": [interrupt("well?")]}

    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    graph.add_node("takes", takes)
    graph.add_node("asks", asks)
    for name in ("takes", "asks"):
        graph.add_edges(START, name, END)
    app = graph.compile(store=store)
    app.invoke(start(), "t")
    number = app.send("t", 1, "go").number
    app.resume("t")
    app.discard("t", number)
    assert sorted(app.resume("t", "yes").state["log"], key=str) == [1, "yes"]


def test_a_message_that_another_task_left_wakes_the_one_that_waits(store: Store) -> None:
    """Each of two tasks has a message, and one needs another. Fails if the row says that both were
    seen after the first task ended without its own: nothing would wake the second.
    """
    receives = [True]

    def fickle(state: Trip, ctx: Context) -> dict[str, Any]:
        if receives:
            ctx.receive("go")
        return {"log": [interrupt("well?")]}

    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    graph.add_node("fickle", fickle)
    graph.add_node("two", two)
    for name in ("fickle", "two"):
        graph.add_edges(START, name, END)
    graph.with_default_config(ExecutionConfig(max_parallel=1))
    app = graph.compile(store=store)
    app.submit(start(), "t")
    work(app)
    for number in (1, 2):
        app.send("t", number, "go")
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert (row.status, row.waiting_topics) == ("interrupted", (("go", 2),))
    receives.clear()
    app.answer("t", "yes")
    work(app)
    assert app.state("t").state["log"] == ["yes", 2, 1]  # 2 was its first before, too


def test_steps_between_two_commits_consume_with_the_next_one(store: Store, run: Runner) -> None:
    """Fails if a step that is not saved forgets its messages: they would be received again."""

    def one(state: Trip) -> dict[str, Any]:
        return {"log": [current().receive("go")]}

    async def aone(state: Trip) -> dict[str, Any]:
        return {"log": [await current().areceive("go")]}

    node = aone if run.name == "asynchronous" else one
    app = line(None, node, node, node, checkpoint=CheckpointConfig(store=store, interval=10))
    assert run.invoke(app, start(), "t").status == "sleeping"
    for number in (1, 2):
        app.send("t", number, "go")
    assert run.resume(app, "t").state["log"] == [1, 2]
    assert not values(app)
    app.send("t", 3, "go")
    assert run.resume(app, "t").state["log"] == [1, 2, 3]
    assert not values(app)


@pytest.mark.requirement("M1")
def test_a_run_that_was_taken_over_consumes_nothing(store: Store) -> None:
    """Fails if consuming is not part of the fenced batch."""

    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        found = ctx.receive("go")
        if not taken:
            taken.append(True)
            assert app.resume("t", take_over=True).state["log"] == [1]
        return {"log": [found]}

    taken: list[bool] = []
    app = line(store, node)
    app.invoke(start(), "t")
    app.send("t", 1, "go")
    app.send("t", 2, "go")
    with pytest.raises(Conflict):
        app.resume("t")
    assert values(app) == [2]


def test_an_updated_and_a_forked_thread_still_wait(store: Store, run: Runner) -> None:
    """Fails if a branch has no waiting topics, or its wait has numbers of another mailbox."""
    app = line(store, two)
    app.submit(start(), "t")
    work(app)
    app.send("t", 1, "go")
    work(app)
    app.update_state("t", {"log": ["updated"]})
    row = store.thread(KEY)
    assert row is not None
    assert row.waiting_topics == (("go", 1),)
    app.fork("t", app.state("t").seq, "branch")
    assert not app.mailbox("branch")
    app.send("branch", 8, "go")
    assert run.resume(app, "branch").status == "sleeping"
    app.send("branch", 9, "go")
    assert run.resume(app, "branch").state["log"] == ["updated", 8, 9]
    app.send("t", 2, "go")
    work(app)
    assert app.state("t").state["log"] == ["updated", 1, 2]


def test_time_travel_does_not_bring_back_a_consumed_message(store: Store) -> None:
    app = line(store, two)
    app.invoke(start(), "t")
    before = app.state("t").seq
    for value in (1, 2):
        app.send("t", value, "go")
    app.resume("t")
    app.fork("t", before)
    assert not values(app)
    with pytest.raises(ResumeRefused):
        app.resume("t")
    for value in (3, 4):
        app.send("t", value, "go")
    assert app.resume("t").state["log"] == [3, 4]


@pytest.mark.requirement("M3")
def test_several_topics_give_the_oldest_message_of_any(store: Store, run: Runner) -> None:
    """Fails if the topics are looked at one after the other, instead of by number."""

    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        found = [ctx.receive(("pay", "cancel")) for _ in range(2)]
        return {"log": [(one.topic, one.value, one.by) for one in found]}

    app = line(store, node)
    run.invoke(app, start(), "t")
    app.send("t", 1, "cancel", by="ann")
    app.send("t", 2, "pay")
    assert run.resume(app, "t").state["log"] == [("cancel", 1, "ann"), ("pay", 2, None)]
    app.delete("t", take_over=True)
    app.submit(start(), "t")
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert sorted(row.waiting_topics) == [("cancel", 0), ("pay", 0)]


def test_types_convert_values_and_refuse_others(store: Store, run: Runner) -> None:
    """A refused message stays unread. Fails if it is consumed by the failed step."""

    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.receive("orders", Order).id]}

    app = line(store, node)
    run.invoke(app, start(), "t")
    wrong = app.send("t", {"id": "secret"}, "orders")
    app.send("t", {"id": 7}, "orders")
    with pytest.raises(ExecutionError) as caught:
        run.resume(app, "t")
    assert "message 1, of topic 'orders', is not a valid Order" in str(caught.value.cause)
    assert "secret" not in str(caught.value.cause)
    app.discard("t", wrong.number)
    assert run.resume(app, "t").state["log"] == [7]


def test_declared_types_arrive_as_instances(store: Store, run: Runner) -> None:
    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        found = ctx.receive("orders")
        assert isinstance(found, Order)
        return {"log": [found.id]}

    app = line(store, node, topics={"orders": Order})
    run.invoke(app, start(), "t")
    app.send("t", {"id": 7}, "orders")
    assert run.resume(app, "t").state["log"] == [7]


def test_messages_of_encrypted_threads_are_received(store: Store, run: Runner) -> None:
    keyring = Keyring({"old": b"o" * 32}, store=MemoryStore())
    app = line(store, two, encryption=keyring)
    run.invoke(app, start(), "t")
    for value in (1, 2):
        app.send("t", value, "go", key=str(value))
    assert run.resume(app, "t").state["log"] == [1, 2]
    assert app.send("t", 1, "go", key="1").reused


def test_a_node_that_runs_again_sends_once(store: Store, run: Runner) -> None:
    """Fails if the key of ``ctx.send`` is not derived from the task."""

    def sends(state: Trip, ctx: Context) -> dict[str, Any]:
        for number in (1, 2):
            ctx.send("other", number, "go")
        return {"log": [ctx.receive("done")]}

    async def asends(state: Trip, ctx: Context) -> dict[str, Any]:
        for number in (1, 2):
            await ctx.asend("other", number, "go")
        return {"log": [await ctx.areceive("done")]}

    app = line(store, asends if run.name == "asynchronous" else sends)
    line(store, two).invoke(start(), "other")
    run.invoke(app, start(), "t")
    app.send("t", "yes", "done")
    run.resume(app, "t")
    found = app.mailbox("other")
    assert [(one.value, one.topic, one.by) for one in found] == [(1, "go", "t"), (2, "go", "t")]


def test_a_task_cannot_send_to_a_missing_thread(store: Store) -> None:
    def sends(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.send("nowhere", 1)
        return {}

    with pytest.raises(ExecutionError) as caught:
        line(store, sends).invoke(start(), "t")
    assert isinstance(caught.value.cause, InvalidRequest)


def test_receiving_needs_a_store(run: Runner) -> None:
    with pytest.raises(ExecutionError) as caught:
        run.invoke(line(None, two), start())
    assert "need a store that has mailboxes" in str(caught.value.cause)


def test_a_subgraph_cannot_receive(store: Store) -> None:
    inner = line(None, two)
    graph: StateGraph[Trip] = StateGraph(Trip, name="outer")
    graph.add_node("inner", inner)
    graph.add_edges(START, "inner", END)
    with pytest.raises(ExecutionError) as caught:
        graph.compile(store=store).invoke(start(), "t")
    assert "is in a subgraph" in str(caught.value.__cause__)


def hurried(state: Trip, ctx: Context) -> dict[str, Any]:
    found = ctx.receive("go", timeout=0, default="none")
    return {"log": [found, interrupt("well?")]}


@pytest.mark.requirement("M3")
def test_a_timeout_is_committed_before_the_node_resumes(store: Store, run: Runner) -> None:
    """Fails if the clock decides: after the timeout a message comes, and the node runs again."""
    app = line(store, hurried)
    result = run.invoke(app, start(), "t")
    assert result.status == "sleeping"
    assert result.wake_at is not None
    assert run.resume(app, "t").status == "interrupted"
    assert "answer" in [entry.source for entry in app.history("t")]
    app.send("t", "late", "go")
    assert run.resume(app, "t", answer="yes").state["log"] == ["none", "yes"]
    assert values(app) == ["late"]


def test_a_message_before_the_timeout_was_written_wins(store: Store, run: Runner) -> None:
    """Fails if the deadline is looked at before the mailbox."""
    app = line(store, hurried)
    run.invoke(app, start(), "t")
    app.send("t", "early", "go")
    assert run.resume(app, "t").status == "interrupted"
    assert run.resume(app, "t", answer="yes").state["log"] == ["early", "yes"]
    assert not values(app)


def test_workers_time_out_a_thread_and_wake_it_for_a_message_before(store: Store) -> None:
    """Fails if the row of a wait with a deadline has no time, or no topics."""

    def patient(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.receive("go", timeout=timedelta(hours=1))]}

    app = line(store, patient, hurried)
    app.submit(start(), "t")
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert row.waiting_topics == (("go", 0),)
    assert row.due_at == row.wake_at is not None
    assert app.wait("t", timeout=30).status == "sleeping"
    app.send("t", 1, "go")
    work(app)
    assert app.state("t").status == "interrupted"
    app.answer("t", "yes")
    work(app)
    assert app.state("t").state["log"] == [1, "none", "yes"]


def test_a_timeout_without_a_default_is_raised(store: Store, run: Runner) -> None:
    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        try:
            ctx.receive(("go", "stop"), timeout=0)
        except TimeoutError as error:
            found = cast("TimedOut", error)
            return {"log": [type(found) is TimedOut, found.message.partition(" and ")[2]]}
        return {}

    app = line(store, node)
    run.invoke(app, start(), "t")
    expected = "no message of topic 'go', 'stop' came"
    assert run.resume(app, "t").state["log"] == [True, expected]


def fan_out(
    store: Store, item: Callable[..., Any], items: int, parallel: int = 1, **options: Any
) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    graph.add_node("item", item)
    graph.add_conditional_edges(START, lambda state: [Send("item", {})] * items, ["item"])
    graph.add_edge("item", END)
    graph.with_default_config(ExecutionConfig(max_parallel=parallel))
    return graph.compile(store=store, **options)


def test_an_item_that_asks_about_its_message_keeps_it(store: Store, run: Runner) -> None:
    """Two items each receive an order and ask about it. Fails if the second item is given the order
    of the first, which waits for its answer: both ask about it, and one answer is for the other.
    """

    def item(state: Trip) -> dict[str, Any]:
        order = current().receive("go")
        return {"log": [(order, interrupt("ship it?", show=order))]}

    app = fan_out(store, item, 2)
    app.submit(start(), "t")
    work(app)
    for order in ("first", "second"):
        app.send("t", order, "go")
        work(app)
    app.update_state("t", {"log": ["updated"]})
    asked = {one.id: one.show for one in app.state("t").interrupts}
    assert sorted(asked.values()) == ["first", "second"]
    result = run.resume(app, "t", answers={id: f"ship {show}" for id, show in asked.items()})
    assert result.state["log"] == [
        "updated",
        ("first", "ship first"),
        ("second", "ship second"),
    ]
    assert not values(app)


def test_a_record_about_a_message_stays_with_it(store: Store, run: Runner) -> None:
    """Fails if a task that sleeps after ``ctx.once`` loses its message to another task."""
    charged: list[Any] = []

    def item(state: Trip, ctx: Context) -> dict[str, Any]:
        order = ctx.receive("go")
        ctx.once("charge", charged.append, order)
        ctx.receive("ship")
        return {"log": [order]}

    app = fan_out(store, item, 2)
    run.invoke(app, start(), "t")
    for order in (1, 2):
        app.send("t", order, "go")
        run.resume(app, "t")
    assert charged == [1, 2]
    for order in (1, 2):
        app.send("t", order, "ship")
        result = run.resume(app, "t")
    assert (result.state["log"], charged) == ([1, 2], [1, 2])
    assert not values(app)


def test_a_record_stays_with_its_message_when_its_task_failed(store: Store) -> None:
    """Two tasks receive in one order, record and fail, and receive again in the other order. Fails
    if records do not reserve what their task received (``Received.recorded`` returns nothing).
    """
    turns = {"1": threading.Event(), "0": threading.Event()}
    tries = {"0": 0, "1": 0}

    def item(state: Trip, ctx: Context) -> dict[str, Any]:
        me = ctx.task[-1]
        tries[me] += 1
        other = "1" if tries[me] == 1 else "0"  # who receives first
        if me != other:
            turns[other].wait(10)
        order = ctx.receive("go")
        charged = ctx.once("charge", lambda: order)
        turns[other].set()
        if tries[me] == 1:
            raise ValueError
        return {"log": [(order, charged)]}

    app = fan_out(store, item, 2, parallel=2)
    app.submit(start(), "t")
    for order in ("a", "b"):
        app.send("t", order, "go")
    with pytest.raises(ExecutionError):
        app.resume("t", take_over=True)
    assert app.resume("t").state["log"] == [("b", "b"), ("a", "a")]
    assert not values(app)


class LosesARecord(WrappedStore):
    """Answers the first commit of a record with an error, after writing it."""

    is_lost = False

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        if not self.is_lost and any("?" in row.task for row in batch.results):
            self.is_lost = True
            raise Unavailable("the answer was lost on purpose")


def test_a_record_whose_commit_was_not_answered_keeps_its_message(store: Store) -> None:
    """Was applied twice: the other task recorded the same message, and both rows reserved it. Fails
    if a failed commit of a record releases the task's messages.
    """
    is_lost = threading.Event()

    def item(state: Trip, ctx: Context) -> dict[str, Any]:
        if ctx.task.endswith("1"):
            is_lost.wait(10)
        order = ctx.receive("go")
        try:
            charged = ctx.once("charge", lambda: order)
        except Unavailable:
            Timer(0.1, is_lost.set).start()  # the run has seen the failure by then
            raise
        return {"log": [(order, charged)]}

    fan_out(store, item, 2, parallel=2).submit(start(), "t")
    app = fan_out(LosesARecord(store), item, 2, parallel=2)
    app.send("t", "a", "go")
    with pytest.raises(ExecutionError):
        app.resume("t", take_over=True)
    assert app.resume("t").status == "sleeping"
    app.send("t", "b", "go")
    assert app.resume("t").state["log"] == [("a", "a"), ("b", "b")]
    assert not values(app)


def test_a_task_that_failed_after_its_wait_is_retried(store: Store, run: Runner) -> None:
    """It recorded something about the message that ended its wait. Fails if its message counts as
    another task's: the retry is refused until one more message comes.
    """
    failures = [ValueError()]

    def item(state: Trip, ctx: Context) -> dict[str, Any]:
        order = ctx.receive("go")
        charged = ctx.once("charge", lambda: order)
        if failures:
            raise failures.pop()
        return {"log": [(order, charged)]}

    app = fan_out(store, item, 2)
    run.invoke(app, start(), "t")
    app.send("t", "a", "go")
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    assert run.resume(app, "t").status == "sleeping"
    app.send("t", "b", "go")
    assert run.resume(app, "t").state["log"] == [("a", "a"), ("b", "b")]


def test_a_number_that_is_not_an_int_is_refused(store: Store) -> None:
    """Was a TypeError of the database's driver."""
    app = line(store, two)
    app.submit(start(), "t")
    with pytest.raises(InvalidRequest, match="is an int, not str"):
        app.discard("t", cast("Any", "1"))


def test_only_received_messages_are_read_when_a_step_runs_again(store: Store) -> None:
    """Not the payloads of those that came later. Fails if all above the first are read."""
    failures = [ValueError()]

    def item(state: Trip, ctx: Context) -> dict[str, Any]:
        if ctx.task.endswith("1") and failures:
            raise failures.pop()
        return {"log": [ctx.receive("go")]}

    app = fan_out(store, item, 2)
    app.submit(start(), "t")
    for number in range(40):
        app.send("t", number, "go")
    with pytest.raises(ExecutionError):
        app.resume("t", take_over=True)
    assert store.mailbox is not None
    read: list[int] = []
    honest = type(store.mailbox).unread

    def unread(self: Any, *given: Any, **named: Any) -> Any:
        found = honest(self, *given, **named)
        read.extend(one.number for one in found)
        return found

    with patch.object(type(store.mailbox), "unread", unread):
        assert app.resume("t").state["log"] == [0, 1]
    assert len(read) < 40


def test_a_retry_that_receives_nothing_consumes_nothing(store: Store, run: Runner) -> None:
    """Fails if the step consumes what only its failed attempt received."""

    def fickle(state: Trip, ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            app.send("t", 1, "go")
            ctx.receive("go")
            raise ValueError("not yet")
        return {"log": ["done"]}

    app = line(store, fickle, policy={"retry": Retry(attempts=2, delay=0.0)})
    assert run.invoke(app, start(), "t").state["log"] == ["done"]
    assert values(app) == [1]


def test_a_portable_file_has_timeouts_and_no_messages(tmp_path: Path) -> None:
    """Fails if a file with a timeout is refused when it is read, or has numbers of a mailbox."""

    def item(state: Trip, ctx: Context) -> dict[str, Any]:
        found = [ctx.receive("none", timeout=0, default="none"), ctx.receive("go")]
        return {"log": [*found, interrupt("well?")]}

    app = fan_out(MemoryStore(), item, 2, checkpoint_dir=tmp_path)
    app.invoke(start(), "t")
    app.send("t", 1, "go")
    assert app.resume("t").status == "interrupted"
    (path,) = tmp_path.glob("*")
    assert app.load_checkpoint(path)["node"] == "item"


@pytest.mark.parametrize("timeout", [-1, 1e30, float("nan"), "5"])
def test_a_timeout_that_is_no_time_from_now_is_refused(timeout: Any) -> None:
    """Tried: no check; the thread of an endless timeout stayed `running` in SQLite."""

    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.receive("go", timeout=timeout)]}

    with pytest.raises(ExecutionError, match="timeout= takes a time from now"):
        line(MemoryStore(), node).invoke(start(), "t")


@pytest.mark.parametrize("duration", [1e30, float("nan"), float("inf"), "1"])
def test_a_sleep_that_is_no_time_from_now_is_refused(duration: Any) -> None:
    """Fails if ``ctx.sleep`` does not check: the store's index cannot have such a time."""

    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.sleep(duration)
        return {}

    with pytest.raises(ExecutionError) as raised:
        line(MemoryStore(), node).invoke(start(), "t")
    assert isinstance(raised.value.cause, InvalidRequest)


class _Got(TypedDict, total=False):
    got: Any


def test_an_async_node_that_receives_nothing_in_time_gets_its_default() -> None:
    """Fails if only ``receive`` looks at its deadline: ``areceive`` would wait again."""

    async def wait(state: _Got, ctx: Context) -> _Got:
        return {"got": await ctx.areceive("go", timeout=0.01, default="late")}

    graph = StateGraph(_Got, name="waits")
    graph.add_node("wait", wait)
    graph.add_edges(START, "wait", END)
    app = graph.compile(store=MemoryStore())
    assert app.invoke({}, "t").status == "sleeping"
    threading.Event().wait(0.02)
    assert app.resume("t").state == {"got": "late"}


def test_a_receive_without_a_topic_is_refused() -> None:
    """Fails if it waits for a message that nobody can send."""

    def wait(state: _Got, ctx: Context) -> _Got:
        return {"got": ctx.receive(())}

    graph = StateGraph(_Got, name="waits")
    graph.add_node("wait", wait)
    graph.add_edges(START, "wait", END)
    with pytest.raises(ExecutionError, match=r"receive\(\) needs a topic"):
        graph.compile(store=MemoryStore()).invoke({}, "t")


def _receives_go(state: _Got, ctx: Context) -> dict[str, Any]:
    return {"got": ctx.receive("go")}


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_message_to_no_thread_is_refused_with_what_to_do(is_encrypted: bool) -> None:
    """Fails if a thread without a key is an error of encryption, or a typo makes a thread."""
    keyring = Keyring({"k": b"k" * 32}, store=MemoryStore()) if is_encrypted else None
    graph = StateGraph(_Got, name="waits")
    graph.add_node("wait", _receives_go)
    graph.add_edges(START, "wait", END)
    app = graph.compile(store=MemoryStore(), encryption=keyring)
    with pytest.raises(InvalidRequest, match="thread 'typo' does not exist"):
        app.send("typo", 1, "go")
    assert not app.store.threads("default")
