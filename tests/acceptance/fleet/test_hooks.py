"""N6: hooks are notified of ends and questions, durably, signed, and until they accept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Event
from typing import Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    InvalidRequest,
    Keyring,
    Retry,
    StateGraph,
    Store,
    ThreadKey,
    Worker,
    interrupt,
)
from milecastle.app import deliveries
from milecastle.app.runs.cancelling import cancel_run
from milecastle.errors import Unavailable
from milecastle.fleet import posting
from milecastle.fleet.deliveries import Deliveries
from milecastle.model.notices import notices_of
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import QUICK, serving, until
from tests.receiver import SECRET, Receiver, receiving

DO: dict[str, Any] = {}
"""What a thread's node does, by thread; if nothing, it completes."""


class Order(TypedDict):
    item: str
    note: str


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    DO.clear()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def act(state: Order, ctx: Context) -> dict[str, Any]:
    do = DO.get(ctx.thread.thread if ctx.thread else "")
    return {} if do is None else do(state, ctx)


def fails(state: Order, ctx: Context) -> dict[str, Any]:
    raise ValueError(f"no {state['item']} left")


def asks(state: Order, ctx: Context) -> dict[str, Any]:
    return {"note": interrupt("send it?", show=state["item"])}


def ordering(
    store: Store | str | None,
    receiver: Receiver | None,
    *events: Any,
    include: Any = (),
    more: Any = None,
    name: str = "orders",
    **options: Any,
) -> App[Order]:
    graph: StateGraph[Order] = StateGraph(Order, name=name)
    graph.add_node("act", act)
    graph.add_edges(START, "act", END)
    if receiver is not None:
        every = events or ("completed", "failed", "question")
        graph.on(*every, url=receiver.url, secret="env:HOOK_SECRET", include=include)
    if more:
        more(graph)
    return graph.compile(store=store, **options)


def order(item: str = "lamp") -> Order:
    return {"item": item, "note": ""}


def work(app: App[Any], *more: App[Any], **options: Any) -> None:
    """Run everything that is due now, with deliveries to this machine."""
    chosen = QUICK.replaced(deliver_to=("127.0.0.1",), **options)
    asyncio.run(Worker([app, *more], chosen).run_until_idle())


def row(app: App[Any], thread: str) -> Any:
    return app.store.thread(ThreadKey(app.tenant, thread))


def without_graph(app: App[Any], key: ThreadKey) -> bool:
    """Cancel a run as the command line does, which knows no hooks."""
    threads, _ = app.runner.stored(key)
    return cancel_run(threads.store, threads.codec, threads.clock, key)


def sent(app: App[Any]) -> list[Any]:
    """The states of the deliveries."""
    found = [one.key for one in app.threads() if one.key.thread.startswith("delivery@@")]
    return [app.state(key).state for key in found]


@pytest.mark.requirement("N6", api="StateGraph.on")
def test_each_end_and_question_is_delivered_once_and_signed(
    store: Store, receiver: Receiver
) -> None:
    """Was broken: the journal's row without a notice; a signature over the parsed body."""
    DO.update(b=fails, c=asks)
    app = ordering(store, receiver)
    for name in "abc":
        app.submit(order(), name)
    work(app)
    assert receiver.events == [("completed", "a"), ("failed", "b"), ("question", "c")]
    assert all(one.is_genuine for one in receiver.received)
    assert [one.path for one in receiver.received] == ["/hook?from=test"] * 3
    app.resume("c", "yes")
    work(app)
    work(app)
    assert receiver.events[:2] == [("completed", "a"), ("completed", "c")]
    assert len(receiver.received) == len(set(receiver.ids)) == 4
    assert not any(notices_of(one) or one.due_at is not None for one in app.threads())


def test_a_body_has_names_and_numbers_only_unless_more_is_included(receiver: Receiver) -> None:
    """Was broken: the message of an error in every body."""
    DO.update(b=fails, c=asks)
    app = ordering(MemoryStore(), receiver)
    for name in "abc":
        app.submit(order("a secret lamp"), name)
    work(app)
    assert not any(b"lamp" in one.body for one in receiver.received)
    document = next(one.document for one in receiver.received if b'"failed"' in one.body)
    head = app.store.head(ThreadKey("default", "b"))
    assert document["data"] == {
        "tenant": "default",
        "thread": "b",
        "graph": "orders",
        "run": head.run_id if head else "",
        "seq": head.seq if head else 0,
        "time": document["timestamp"],
        "error_type": "ValueError",
        "node": "act",
    }


def test_included_values_are_in_the_body(receiver: Receiver) -> None:
    DO.update(b=fails, c=asks)
    app = ordering(MemoryStore(), receiver, include=("error", "question", "state"))
    for name in "abc":
        app.submit(order(), name)
    work(app)
    data = {one.document["type"]: one.document["data"] for one in receiver.received}
    assert data["completed"]["state"] == {"item": "lamp", "note": ""}
    assert data["failed"]["error"] == "no lamp left"
    asked = data["question"]
    assert (asked["question"], asked["show"], asked["node"]) == ("send it?", "lamp", "act")
    app.resume("c", "yes", question=asked["question_id"])


@pytest.mark.requirement("N6")
def test_a_failure_that_is_retried_is_not_an_event(store: Store, receiver: Receiver) -> None:
    """Was broken: the notice was decided before the time of the retry was known."""
    app = ordering(store, receiver, retry_runs=Retry(attempts=3, delay=0.01))
    tries: list[int] = []

    def twice(state: Order, ctx: Context) -> dict[str, Any]:
        tries.append(1)
        return {} if len(tries) > 2 else fails(state, ctx)

    DO.update(a=twice, b=fails)
    app.submit(order(), "a")
    for _ in range(3):
        work(app)
        time.sleep(0.05)
    assert receiver.events == [("completed", "a")]
    app.submit(order(), "b")
    for _ in range(4):
        work(app)
        time.sleep(0.05)
    assert receiver.events == [("completed", "a"), ("failed", "b")]


class Timeline:
    """A store in memory whose clock a test sets."""

    def __init__(self) -> None:
        self.now = round(datetime(2026, 11, 16, tzinfo=UTC).timestamp()) * 1_000_000
        self.store = MemoryStore(now=lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1_000_000)


@pytest.mark.requirement("N6")
def test_a_delivery_is_repeated_with_growing_delays_until_it_is_accepted(
    receiver: Receiver,
) -> None:
    """A redirect is not followed. Was broken: 3xx taken for accepted; an id for each attempt."""
    timeline = Timeline()
    app = ordering(timeline.store, receiver, "completed")
    receiver.answers = [500, 302, 404, 429]
    app.submit(order(), "a")
    counts: list[int] = []
    for delay in deliveries.DELAYS:
        work(app)
        work(app)
        counts.append(len(receiver.received))
        timeline.advance(delay - 2)
        work(app)
        counts.append(len(receiver.received))
        timeline.advance(3)
    work(app)
    assert counts == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len(set(receiver.ids)) == 1
    assert not any(one.path == "/elsewhere" for one in receiver.received)
    (state,) = sent(app)
    assert (state["outcome"], state["answer"], state["attempt"]) == ("delivered", "204", 4)
    times = [int(one.headers["webhook-timestamp"]) for one in receiver.received]
    assert times == sorted(set(times))


def test_a_delivery_that_nobody_accepts_fails_and_can_be_retried(receiver: Receiver) -> None:
    """Was broken: a retry waited for the last delay again."""
    timeline = Timeline()
    app = ordering(timeline.store, receiver, "completed")
    receiver.answers = [500] * 6
    app.submit(order(), "a")
    for delay in (*deliveries.DELAYS, 1.0):
        work(app)
        timeline.advance(delay + 1)
    (failed,) = app.threads(status="failed")
    failure = app.store.failure(failed.key, failed.run_id)
    assert failure is not None
    assert failure.message == "hook 'orders' accepted none of 6 attempts; of the last: 500"
    app.retry(failed.key)
    work(app)
    assert [one.status for one in receiver.received] == [500] * 6 + [204]
    assert len(set(receiver.ids)) == 1


def test_an_attempt_that_cannot_read_the_thread_is_repeated(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: the delivery failed for good, as a node that raises."""
    honest: Any = vars(Deliveries)["_data"]
    tries = count()

    def data(self: Deliveries, *given: Any) -> Any:
        if next(tries) == 0:
            raise Unavailable("the connection was lost")
        return honest(self, *given)

    monkeypatch.setattr(Deliveries, "_data", data)
    timeline = Timeline()
    app = ordering(timeline.store, receiver, "completed")
    app.submit(order(), "a")
    work(app)
    assert not receiver.received
    assert [state["answer"] for state in sent(app)] == [
        "its thread could not be read (Unavailable)"
    ]
    timeline.advance(deliveries.DELAYS[0] + 1)
    work(app)
    assert receiver.events == [("completed", "a")]


def test_gone_ends_a_delivery(receiver: Receiver) -> None:
    """Was broken: 410 as any other error."""
    app = ordering(MemoryStore(), receiver, "completed")
    receiver.answers = [410]
    app.submit(order(), "a")
    work(app)
    (state,) = sent(app)
    assert (state["outcome"], len(receiver.received)) == ("gone", 1)
    assert all(one.due_at is None for one in app.threads())


def test_answers_that_hang_or_never_end_are_given_up(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: without a limit of time; without a limit of size."""
    monkeypatch.setattr(deliveries, "DELAYS", (0.01,) * 5)
    monkeypatch.setattr(posting, "PATIENCE", 1.0)
    held = Event()

    def hangs(request: Any) -> None:
        held.wait(20)

    def drips(request: Any) -> None:
        for _ in range(100):
            if held.wait(0.05):
                break
            request.wfile.write(b"H")

    def pours(request: Any) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000)

    def babbles(request: Any) -> None:
        request.wfile.write(b"nothing of the kind\r\n\r\n")

    receiver.answers = [hangs, drips, pours, babbles]
    app = ordering(MemoryStore(), receiver, "completed")
    app.submit(order(), "a")

    async def ended() -> bool:
        return any(state["outcome"] for state in sent(app))

    async def serve() -> None:
        async with serving(app, options=QUICK.replaced(deliver_to=(receiver.host,))):
            await until(ended)

    try:
        asyncio.run(serve())
    finally:
        held.set()
    assert [state["outcome"] for state in sent(app)] == ["delivered"]
    assert len(receiver.received) == 5


def test_a_question_that_was_answered_before_it_is_sent_is_not_sent(
    store: Store, receiver: Receiver
) -> None:
    """The answer submits the delivery. Was broken: it did not look again before it sent."""
    DO.update(a=asks)
    app = ordering(store, receiver)
    app.invoke(order(), "a")
    app.resume("a", "yes")
    work(app)
    assert receiver.events == [("completed", "a")]
    assert sorted(state["outcome"] for state in sent(app)) == ["closed", "delivered"]


@pytest.mark.requirement("N6")
@pytest.mark.parametrize("replace", ["input", "update", "fork", "retry", "cancel", "queue"])
def test_whatever_replaces_the_row_loses_no_notice(
    store: Store, receiver: Receiver, replace: str
) -> None:
    """Was broken: each of these without settling first, and cancel without keeping notices."""
    DO.update(a=fails)
    app = ordering(store, receiver)
    with pytest.raises(Exception, match="failed"):
        app.invoke(order(), "a")
    failed = row(app, "a")
    assert [one.event for one in notices_of(failed)] == ["failed"]
    DO.clear()
    if replace == "input":
        app.invoke(order("chair"), "a", discard=True)
    elif replace == "update":
        app.update_state("a", {"note": "more"})
    elif replace == "fork":
        app.fork("a", at=1)
    elif replace == "retry":
        app.retry("a")
    elif replace == "queue":
        app.submit(order("chair"), "a", if_busy="queue")
        cancel_run(
            app.store, app.runner.stored("a")[0].codec, app.runner.settings.clock, failed.key
        )
    else:
        settings = app.runner.settings
        assert not cancel_run(
            app.store, app.runner.stored("a")[0].codec, settings.clock, failed.key
        )
    work(app)
    assert ("failed", "a") in receiver.events
    run_ids = [one.document["data"]["run"] for one in receiver.received]
    assert run_ids.count(failed.run_id) == 1


def test_threads_that_callers_run_stay_theirs(store: Store, receiver: Receiver) -> None:
    """Their deadline is theirs, too. Was broken: the row kept the lane of its notice."""

    def waits(state: Order, ctx: Context) -> dict[str, Any]:
        return {"note": interrupt("send it?", within=timedelta(hours=1), otherwise="no")}

    DO.update(a=waits)
    app = ordering(store, receiver)
    app.invoke(order(), "a")
    work(app)
    assert receiver.events == [("question", "a")]
    found = row(app, "a")
    assert (found.lane, found.due_at, found.waiting_topics) == ("", None, ())
    assert found.wake_at is not None
    assert app.resume("a", "yes").status == "completed"


def test_a_question_of_workers_keeps_its_deadline(receiver: Receiver) -> None:
    """Was broken: the row was not due again after its notice."""
    timeline = Timeline()

    def waits(state: Order, ctx: Context) -> dict[str, Any]:
        return {"note": interrupt("send it?", within=timedelta(hours=1), otherwise="no")}

    DO.update(a=waits)
    app = ordering(timeline.store, receiver)
    app.submit(order(), "a")
    work(app)
    timeline.advance(3601)
    work(app)
    assert receiver.events == [("completed", "a"), ("question", "a")]
    assert app.state("a").state["note"] == "no"


def test_inputs_that_wait_start_after_the_notice(store: Store, receiver: Receiver) -> None:
    app = ordering(store, receiver)
    app.submit(order(), "a")
    app.submit(order("chair"), "a", if_busy="queue")
    app.submit(order("table"), "a", if_busy="queue")
    work(app)
    assert app.state("a").state["item"] == "table"
    assert receiver.events == [("completed", "a")] * 3
    assert len(set(receiver.ids)) == 3


def test_values_and_secrets_are_in_no_store_log_or_error(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encrypted threads, too: what a hook includes is read when it is sent."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HOOK_URL", f"{receiver.url}&token=hidden")
    store = MemoryStore()
    receiver.answers = [500, 410]

    def both(graph: StateGraph[Order]) -> None:
        graph.on(
            "completed", url="env:HOOK_URL", secret="env:HOOK_SECRET", include="state", name="own"
        )
        assert "hidden" not in repr(graph)

    app = ordering(
        store, None, more=both, encryption=Keyring({"k": bytes(32)}, store=MemoryStore())
    )
    app.submit(order("a secret lamp"), "a")
    work(app)
    assert receiver.received[0].document["data"]["state"]["item"] == "a secret lamp"
    plain = ordering(store.__class__(), None, more=both)
    plain.submit(order("b"), "b")
    work(plain)
    for one in plain.threads():
        entries = plain.store.entries(one.key)
        assert not any(b"hidden" in entry.payload for entry in entries)
        assert not any(SECRET.encode()[6:] in entry.payload for entry in entries)
    assert not any(word in caplog.text for word in ("hidden", SECRET[6:], "secret lamp"))
    assert "hidden" not in repr(app.graph.hooks)


def test_a_worker_without_the_secret_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: the first delivery found out."""
    with receiving() as receiver:
        app = ordering(MemoryStore(), receiver)
        monkeypatch.delenv("HOOK_SECRET")
        with pytest.raises(InvalidRequest, match="HOOK_SECRET, which is not set"):
            Worker([app])
        monkeypatch.setenv("HOOK_SECRET", "whsec_c2hvcnQtc2VjcmV0")
        with pytest.raises(InvalidRequest, match="24 to 64 bytes") as raised:
            Worker([app])
        assert "c2hvcn" not in str(raised.value)


def test_two_secrets_sign_while_one_replaces_the_other(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
    monkeypatch.setenv("HOOK_SECRET", f"{other} {SECRET}")
    app = ordering(MemoryStore(), receiver)
    app.submit(order(), "a")
    work(app)
    (one,) = receiver.received
    assert one.is_genuine
    assert len(one.headers["webhook-signature"].split(" ")) == 2


def test_signatures_pass_the_reference_verifier(receiver: Receiver) -> None:
    """Was broken: seconds as a fraction; base64 without padding."""
    peer = pytest.importorskip("standardwebhooks")
    app = ordering(MemoryStore(), receiver)
    app.submit(order("ü"), "a")
    work(app)
    (one,) = receiver.received
    assert peer.Webhook(SECRET).verify(one.body, one.headers)["type"] == "completed"


def test_a_hook_of_a_deployment_that_dropped_it_is_forgotten(receiver: Receiver) -> None:
    """Was broken: the row stayed due, and workers claimed it for ever."""
    store = MemoryStore()
    ordering(store, receiver).invoke(order(), "a")
    app = ordering(store, None)
    work(app)
    assert (row(app, "a").due_at, row(app, "a").waiting_topics) == (None, ())
    assert not receiver.received


def test_deliveries_of_a_tenant_are_its_own(receiver: Receiver) -> None:
    store = MemoryStore()
    app = ordering(store, receiver)
    app.submit(order(), ThreadKey("t1", "a"))
    app.submit(order(), ThreadKey("t2", "a"))
    work(app)
    assert sorted(one.document["data"]["tenant"] for one in receiver.received) == ["t1", "t2"]
    for tenant in ("t1", "t2"):
        names = [one.key.thread for one in store.threads(tenant)]
        assert len(names) == 2
        assert names[0] == "a" or names[1] == "a"
    assert not store.threads("default")


@pytest.mark.requirement("N6")
def test_each_open_question_is_delivered_once_though_the_run_stops_again(
    store: Store, receiver: Receiver
) -> None:
    """Was broken: an id for each stop, so that open questions were sent again."""

    class Batch(TypedDict):
        items: list[str]
        item: str

    graph: StateGraph[Batch] = StateGraph(Batch, name="batch")
    graph.add_node("begin", lambda state: {})
    graph.add_node("ask", lambda state: interrupt(state["item"]) and {})
    graph.add_edge(START, "begin").add_edge("ask", END)
    graph.map("begin", "ask", over="items", item="item")
    graph.on("question", url=receiver.url, secret="env:HOOK_SECRET", include="question")
    app = graph.compile(store=store)
    app.submit({"items": ["a", "b", "c"], "item": ""}, "thread")
    work(app)
    asked = {one.document["data"]["question"]: one.document for one in receiver.received}
    assert sorted(asked) == ["a", "b", "c"]
    app.answer("thread", answers={asked["b"]["data"]["question_id"]: "yes"})
    work(app)
    assert len(receiver.received) == 3
    assert app.state("thread").status == "interrupted"


def test_hooks_of_a_subgraph_are_not_called_and_its_questions_are_the_parents(
    receiver: Receiver,
) -> None:
    store = MemoryStore()
    DO.update({"": asks})

    def ask(state: Order) -> dict[str, Any]:
        return {"note": interrupt("send it?")}

    child: StateGraph[Order] = StateGraph(Order, name="child")
    child.add_node("ask", ask)
    child.add_edges(START, "ask", END)
    child.on("completed", "question", url=receiver.url, secret="env:HOOK_SECRET")
    parent: StateGraph[Order] = StateGraph(Order, name="parent")
    parent.add_node("inner", child.compile())
    parent.add_edges(START, "inner", END)
    parent.on("completed", "question", url=receiver.url, secret="env:HOOK_SECRET")
    app = parent.compile(store=store)
    app.submit(order(), "a")
    work(app)
    assert receiver.events == [("question", "a")]
    app.answer("a", "yes")
    work(app)
    assert receiver.events == [("completed", "a"), ("question", "a")]


def test_a_child_notifies_its_parent_and_its_hooks(store: Store, receiver: Receiver) -> None:
    """Was broken: the one cleared the other."""
    child = ordering(store, receiver)

    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        found = ctx.join(ctx.spawn(child, order("chair")))
        return {"note": found.status}

    parent: StateGraph[Order] = StateGraph(Order, name="parent")
    parent.add_node("spawn", spawn)
    parent.add_edges(START, "spawn", END)
    parent.on("completed", url=receiver.url, secret="env:HOOK_SECRET")
    app = parent.compile(store=store)
    app.submit(order(), "a")
    work(app, child)
    assert app.state("a").state["note"] == "completed"
    graphs = [one.document["data"]["graph"] for one in receiver.received]
    assert sorted(graphs) == ["orders", "parent"]  # their order is not promised


def test_the_delivery_of_a_deleted_thread_ends(receiver: Receiver) -> None:
    timeline = Timeline()
    app = ordering(timeline.store, receiver, "completed")
    receiver.answers = [500]
    app.submit(order(), "a")
    work(app)
    app.delete("a")
    timeline.advance(10)
    work(app)
    assert [state["outcome"] for state in sent(app)] == ["closed"]
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"url": "ftp://example.org"}, "https://HOST/PATH"),
        ({"url": "https://user:hidden@example.org/"}, "without a user"),
        ({"url": "https://example.org/a\r\nx: y"}, "https://HOST/PATH"),
        ({"url": "https://example.org/ a"}, "https://HOST/PATH"),
        ({"url": "https://[::1"}, "https://HOST/PATH"),
        ({"url": "https:///path"}, "https://HOST/PATH"),
        ({"url": "https://example.org:99999/"}, "https://HOST/PATH"),
        ({"secret": "whsec_hidden"}, "'env:NAME', and never the secret"),
        ({"secret": "env:"}, "'env:NAME'"),
        ({"include": ("states",)}, "include= takes error, question, state"),
        ({"name": "a b"}, "letters, digits"),
        ({"name": "a@@b"}, "letters, digits"),
    ],
)
def test_a_wrong_hook_is_refused_at_once(given: dict[str, Any], problem: str) -> None:
    graph: StateGraph[Order] = StateGraph(Order, name="orders")
    options: dict[str, Any] = {"url": "https://example.org/", "secret": "env:S", **given}
    with pytest.raises(InvalidRequest, match=problem) as raised:
        graph.on("failed", **options)
    assert "hidden" not in str(raised.value)


def test_hooks_that_cannot_be_notified_are_refused() -> None:
    graph: StateGraph[Order] = StateGraph(Order, name="orders")
    graph.add_node("act", act)
    graph.add_edges(START, "act", END)
    with pytest.raises(InvalidRequest, match="no event"):
        graph.on(url="https://example.org/", secret="env:S")
    graph.on("failed", url="https://example.org/", secret="env:S")
    with pytest.raises(InvalidRequest, match="has a hook 'orders' already"):
        graph.on("completed", url="https://example.org/", secret="env:S")
    with pytest.raises(InvalidRequest, match="preserve=False"):
        graph.compile(store="memory://").runner.rebuilt(preserve=False)
    graph.compile()
