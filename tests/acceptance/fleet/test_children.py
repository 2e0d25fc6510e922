"""A run starts runs on other threads and waits for them; each end reaches it once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    ChildResult,
    Context,
    ExecutionError,
    InvalidRequest,
    Keyring,
    Retention,
    Retry,
    StateGraph,
    Store,
    ThreadKey,
    append,
    interrupt,
)
from milecastle.app.runs import cancelling
from milecastle.model.children import OUTSTANDING
from milecastle.ports.task import NewChild
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from tests.acceptance.fleet.working import work

PARENT = ThreadKey("default", "order")
FAILS: set[str] = set()


class Order(TypedDict):
    items: list[str]
    children: list[str]
    log: Annotated[list[str], append]


class Shipment(TypedDict):
    item: str
    box: str


def ship(state: Shipment) -> dict[str, Any]:
    if state["item"] in FAILS:
        raise ValueError("out of stock")
    if state["item"] == "question":
        return {"box": interrupt("which box?")}
    return {"box": f"box of {state['item']}"}


def shipping(store: Store | str | None, **options: Any) -> App[Shipment]:
    graph = StateGraph(Shipment, name="shipping")
    graph.add_node("ship", ship)
    graph.add_edges(START, "ship", END)
    return graph.compile(store=store, **options)


def ordering(
    store: Store, child: App[Any] | str, *, join: Callable[..., Any] | None = None, **options: Any
) -> App[Order]:
    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        inputs = [{"item": item, "box": ""} for item in state["items"]]
        return {"children": ctx.spawn_many(child, inputs)}

    def joined(state: Order, ctx: Context) -> dict[str, Any]:
        return {"log": [told(ctx.join(one)) for one in state["children"]]}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("spawn", spawn)
    graph.add_node("join", join or joined)
    graph.add_edges(START, "spawn", "join", END)
    return graph.compile(store=store, **options)


def told(found: ChildResult) -> str:
    return found.state["box"] if found.state else f"{found.status}: {found.failure}"


def order(*items: str) -> Any:
    return {"items": [*items], "children": [], "log": []}


def rows(store: Store) -> dict[str, Any]:
    return {row.key.thread: row for row in store.threads("default", limit=1000)}


def nothing_is_outstanding(store: Store) -> bool:
    return not any(
        OUTSTANDING in row.waiting_topics or row.due_at is not None for row in rows(store).values()
    )


@pytest.fixture(autouse=True)
def _no_failures() -> None:
    FAILS.clear()


@pytest.mark.requirement("M9")
def test_a_run_joins_the_runs_it_spawned(store: Store) -> None:
    """Was broken: the child's last commit did not leave its notification."""
    child = shipping(store)
    app = ordering(store, child)
    app.submit(order("a", "b"), "order")
    work(app, child)
    assert app.state("order").state["log"] == ["box of a", "box of b"]
    assert nothing_is_outstanding(store)
    assert not app.mailbox("order")


@pytest.mark.requirement("M9")
def test_children_are_found_by_name_and_run_by_other_workers(store: Store) -> None:
    """Was broken: a worker did not know the graphs beside it."""
    app = ordering(store, "shipping")
    app.submit(order("a"), "order")
    work(app, shipping(None))
    assert app.state("order").state["log"] == ["box of a"]
    [name] = app.state("order").state["children"]
    assert name.startswith("child@@order/spawn.0-")
    assert [row.key.thread for row in app.threads(tag="parent:order")] == [name]


def test_a_name_no_worker_serves_is_refused() -> None:
    store = MemoryStore()
    app = ordering(store, "shiping")
    app.submit(order("a"), "order")
    work(app, shipping(store))
    failure = store.failure(PARENT, rows(store)["order"].run_id)
    assert failure is not None
    assert "does not serve a graph 'shiping'" in failure.message


def test_a_parent_and_its_child_share_a_store() -> None:
    app = ordering(MemoryStore(), shipping(MemoryStore()))
    with pytest.raises(Exception, match="compiled with another store"):
        app.invoke(order("a"), "order")


def test_an_app_opened_by_the_same_url_is_a_child_on_the_parents_store(tmp_path: Path) -> None:
    """Was broken: a worker forgot where its store is."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    graph = StateGraph(Order, name="ordering")
    other = shipping(url)

    @graph.node
    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        return {"log": [told(ctx.join(ctx.spawn(other, {"item": "a", "box": ""}, "ship-a")))]}

    graph.add_edges(START, "spawn", END)
    app = graph.compile(store=url)
    app.submit(order(), "order")
    work(app)
    assert app.store.thread(ThreadKey("default", "ship-a")) is not None
    work(other)
    work(app)
    assert app.state("order").state["log"] == ["box of a"]
    other.close()
    app.close()


@pytest.mark.requirement("M9")
def test_a_failed_child_is_reported_when_it_is_not_retried(store: Store) -> None:
    """Was broken: a failure that is retried was reported."""
    FAILS.add("a")
    child = shipping(store, retry_runs=Retry(attempts=2, delay=3600))
    app = ordering(store, child)
    app.submit(order("a"), "order")
    work(app)
    [name] = app.state("order").state["children"]
    work(child)
    assert not app.mailbox("order")
    child.retry(name)  # the second attempt, at once
    work(app, child)
    assert app.state("order").state["log"] == ["failed: ValueError: out of stock"]
    assert len(store.runs(ThreadKey("default", name))) == 2
    FAILS.clear()
    child.retry(name)
    work(app, child)
    [message] = app.mailbox("order")
    assert message.value["status"] == "completed"


@pytest.mark.requirement("M9")
def test_cancelling_a_parent_cancels_its_children_except_those_that_stay(store: Store) -> None:
    """Was broken: the cascade ignored on_cancel, or did not happen."""
    child = shipping(store)

    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        own = {"item": "question", "box": ""}
        names = [ctx.spawn(child, own), ctx.spawn(child, own, "stays", on_cancel="leave")]
        return {"log": [told(ctx.join(name)) for name in names]}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("spawn", spawn)
    graph.add_edges(START, "spawn", END)
    app = graph.compile(store=store)
    app.submit(order(), "order")
    work(app, child)
    assert app.cancel("order")
    found = rows(store)
    own = next(name for name in found if name.startswith("child@@"))
    assert (found["order"].status, found[own].status) == ("cancelled", "cancelled")
    assert found["stays"].status == "interrupted"
    assert nothing_is_outstanding(store)
    child.answer("stays", "large")
    work(app, child)
    assert [one.value["status"] for one in app.mailbox("order")] == ["cancelled", "completed"]
    app.retry("order")
    work(app, child)
    assert app.state("order").state["log"][0].startswith("cancelled: RunCancelled")
    assert app.state("order").state["log"][1] == "large"


@pytest.mark.requirement("M9")
def test_a_cascade_that_breaks_is_finished_by_the_next_worker(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: the cancellation without an outstanding notification."""
    child = shipping(store)
    app = ordering(store, child)
    app.submit(order(*["question"] * 4), "order")
    work(app, child)
    cancel, calls = cancelling.cancel_spawned, list[ThreadKey]()

    def breaks(*args: Any) -> None:
        calls.append(args[3])
        if len(calls) == 3:
            raise KeyboardInterrupt
        cancel(*args)

    with monkeypatch.context() as patched:
        patched.setattr(cancelling, "cancel_spawned", breaks)
        with pytest.raises(KeyboardInterrupt):
            app.cancel("order")
    statuses = [row.status for row in rows(store).values()]
    assert statuses.count("cancelled") == 3
    work(app, child)
    assert {row.status for row in rows(store).values()} == {"cancelled"}
    assert nothing_is_outstanding(store)


@pytest.mark.requirement("M9")
def test_a_child_that_cannot_be_cancelled_does_not_keep_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: the caller got its error, and the others were never cancelled."""
    child = shipping(store)
    app = joining(store, child, reported)
    app.submit(order("question", "z"), "order")
    work(app)
    cancel = cancelling.cancel_run

    def deleted(store: Store, codec: Any, clock: Any, key: ThreadKey, *run_id: str) -> bool:
        if key.thread == "question":  # by another process, just now
            store.delete(key)
        return cancel(store, codec, clock, key, *run_id)

    monkeypatch.setattr(cancelling, "cancel_run", deleted)
    assert app.cancel("order")
    assert {name: row.status for name, row in rows(store).items()} == {
        "order": "cancelled",
        "z": "cancelled",
    }
    assert nothing_is_outstanding(store)


@pytest.mark.requirement("M9")
def test_a_child_spawned_after_the_cascade_ends_as_cancelled(store: Store) -> None:
    """Was broken: a spawned run did not look at its parent."""
    child = shipping(store)
    app = ordering(store, child)
    run_id = app.submit(order(), "order").run_id
    app.cancel("order")
    late = NewChild("late", {"item": "a", "box": ""}, None, "call", False, False)
    app.runner.spawn(PARENT, run_id, None, child, [late])  # by a worker that lost the thread
    work(app, child)
    found = rows(store)
    assert (found["order"].status, found["late"].status) == ("cancelled", "cancelled")
    assert nothing_is_outstanding(store)
    child.retry("late")  # somebody wants it all the same
    work(app, child)
    assert rows(store)["late"].status == "completed"


def test_a_resumed_parent_spawns_though_its_thread_is_still_cancelled() -> None:
    """Was broken: a run that was not committed yet counted as cancelled."""
    store = MemoryStore()
    child = shipping(store)
    app = ordering(store, child)
    app.submit(order("a"), "order")
    assert app.cancel("order")
    app.resume("order")
    work(child)
    assert app.resume("order").state["log"] == ["box of a"]


@pytest.mark.requirement("M9")
def test_a_deleted_parent_is_not_notified(store: Store) -> None:
    """Was broken: the refused message was sent again and again."""
    child = shipping(store)
    app = ordering(store, child)
    app.submit(order("a"), "order")
    work(app)
    app.delete("order", take_over=True)
    work(child)
    assert [row.status for row in rows(store).values()] == ["completed"]
    assert nothing_is_outstanding(store)


@pytest.mark.requirement("M9")
@pytest.mark.parametrize("write", ["retry", "submit", "fork", "update"])
def test_a_writer_that_replaces_a_row_sends_its_notification_first(
    store: Store, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: the row was replaced, and the parent was never notified."""
    FAILS.update(["a"] if write == "retry" else [])
    child = shipping(store)

    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        return {"log": [told(ctx.join(ctx.spawn(child, {"item": "a", "box": ""}, "ship")))]}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("spawn", spawn)
    graph.add_edges(START, "spawn", END)
    app = graph.compile(store=store)
    app.submit(order(), "order")
    work(app)
    with monkeypatch.context() as patched:
        patched.setattr("milecastle.fleet.run_segments.settle_thread", _crash)
        patched.setattr("milecastle.fleet.run_segments.Segments._refuse", _leave_it)
        work(child)
    [name] = [name for name in rows(store) if name != "order"]
    assert OUTSTANDING in rows(store)[name].waiting_topics
    if write == "retry":
        child.retry(name)
    elif write == "submit":
        child.submit({"item": "b", "box": ""}, name)
    elif write == "fork":
        child.fork(name, 1)
    else:
        child.update_state(name, {"box": "another"})
    [message] = app.mailbox("order")
    assert message.value["status"] == ("failed" if write == "retry" else "completed")


def joining(store: Store, child: App[Any], join: Callable[[Context, str], Any]) -> App[Order]:
    """A parent that spawns a child under its item's name for each item, and joins them in order."""

    def both(state: Order, ctx: Context) -> dict[str, Any]:
        names = [ctx.spawn(child, {"item": item, "box": ""}, item) for item in state["items"]]
        return {"log": [join(ctx, name) for name in names]}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("both", both)
    graph.add_edges(START, "both", END)
    return graph.compile(store=store)


def reported(ctx: Context, child: str) -> str:
    return told(ctx.join(child))


@pytest.mark.requirement("M9")
def test_the_run_that_replaces_a_childs_reports_to_the_parent(store: Store) -> None:
    """Was broken: the new run was nobody's child, and the parent waited for ever."""
    child = shipping(store)
    app = joining(store, child, reported)
    app.submit(order("question"), "order")
    work(app, child)
    child.submit({"item": "b", "box": ""}, "question", if_busy="cancel")
    work(app, child)
    assert app.state("order").state["log"] == ["box of b"]
    child.submit({"item": "question", "box": ""}, "question")
    work(child)
    child.submit({"item": "c", "box": ""}, "question", if_busy="cancel")
    work(child)
    assert not app.mailbox("order")


@pytest.mark.requirement("M9")
def test_children_of_a_stopped_process_are_not_cancelled() -> None:
    """Was broken: those that no worker had started yet were, and the others were not."""
    store = MemoryStore()
    child = shipping(store)
    is_stopped = False

    def stopped(ctx: Context, name: str) -> str:
        if not is_stopped:
            raise KeyboardInterrupt
        return told(ctx.join(name))

    app = joining(store, child, stopped)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(order("a"), "order")
    assert rows(store)["order"].status == "cancelled"
    work(child)
    is_stopped = True
    assert app.resume("order").state["log"] == ["box of a"]


@pytest.mark.requirement("M9")
def test_retention_keeps_the_children_of_a_parent_that_is_not_completed(store: Store) -> None:
    """Was broken: the parent's node ran again, and spawned the deleted child a second time."""
    child = shipping(store)
    app = joining(store, child, reported)
    app.submit(order("a", "question"), "order")
    work(app, child)
    log, everything = CheckpointStore(store), Retention(older_than=timedelta(0))
    assert log.apply_retention("default", everything).deleted == ()
    child.resume("question", "box")
    work(app, child)
    assert app.state("order").state["log"] == ["box of a", "box"]
    assert log.apply_retention("default", everything).deleted == ("a", "order", "question")


@pytest.mark.requirement("M9")
def test_a_caller_waits_for_a_parent_that_waits_for_its_children() -> None:
    """Was broken: the run counted as stopped, like one that waits for somebody's message.

    And then one that no worker will resume did not.
    """
    store = MemoryStore()
    child = shipping(store)
    app = joining(store, child, reported)
    assert app.invoke(order("b"), "invoked").status == "sleeping"
    assert app.wait("invoked", timeout=0).status == "sleeping"
    handle = app.submit(order("a"), "order")
    work(app)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    work(app, child)
    assert handle.result(timeout=0).state["log"] == ["box of a"]


def _leave_it(*_: Any) -> None:
    """Keep the thread, as a worker that was killed does."""


def _crash(*_: Any) -> bool:
    raise InvalidRequest("the worker has ended here")


def test_a_thread_somebody_else_started_is_refused(store: Store) -> None:
    """Was broken: the run of another caller counted as the child."""
    child = shipping(store)
    child.submit({"item": "a", "box": ""}, "taken")

    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        ctx.spawn(child, {"item": "a", "box": ""}, "taken")
        return {}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("spawn", spawn)
    graph.add_edges(START, "spawn", END)
    app = graph.compile(store=store)
    with pytest.raises(Exception, match="thread 'taken' exists, and is no child of this call"):
        app.invoke(order(), "order")
    with pytest.raises(InvalidRequest, match="cannot contain '@@'"):
        child.submit({"item": "a", "box": ""}, "child@@order")


def test_a_node_that_runs_again_spawns_once(store: Store) -> None:
    """Was broken: names that differ between attempts."""
    child, tries = shipping(store), list[str]()

    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        tries.append(ctx.spawn(child, {"item": "a", "box": ""}))
        if len(tries) == 1:
            raise ValueError("once")
        return {"log": [told(ctx.join(tries[0]))]}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("spawn", spawn, retry=2)
    graph.add_edges(START, "spawn", END)
    app = graph.compile(store=store)
    app.submit(order(), "order")
    work(app, child)
    assert len(rows(store)) == 2
    assert app.state("order").state["log"] == ["box of a"]


def test_a_join_times_out_without_workers_for_the_child() -> None:
    store = MemoryStore()
    child = shipping(store)

    def join(state: Order, ctx: Context) -> dict[str, Any]:
        try:
            return {"log": [told(ctx.join(state["children"][0], timeout=0))]}
        except TimeoutError as error:
            return {"log": [str(error)]}

    app = ordering(store, child, join=join)
    app.submit(order("a"), "order")
    work(app)
    [text] = app.state("order").state["log"]
    assert "no end of child 'child@@order/spawn.0-" in text
    assert text.endswith("came [MC212]")


def test_async_nodes_spawn_and_join(store: Store) -> None:
    child = shipping(store)

    async def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        one = await ctx.aspawn(child, {"item": "a", "box": ""})
        many = await ctx.aspawn_many(child, [{"item": item, "box": ""} for item in "bc"])
        return {"log": [told(await ctx.ajoin(name)) for name in (one, *many)]}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("spawn", spawn)
    graph.add_edges(START, "spawn", END)
    app = graph.compile(store=store)
    app.submit(order(), "order")
    work(app, child)
    assert app.state("order").state["log"] == ["box of a", "box of b", "box of c"]


def test_an_async_node_that_would_block_the_loop_is_told_what_to_call(tmp_path: Path) -> None:
    """Was broken: it told a node that spawns to receive."""
    store = SqliteStore(tmp_path / "runs.db")

    async def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.spawn("shipping", {"item": "a", "box": ""})]}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("spawn", spawn)
    graph.add_edges(START, "spawn", END)
    with pytest.raises(ExecutionError) as raised:
        asyncio.run(graph.compile(store=store).ainvoke(order(), "order"))
    assert "ctx.aspawn(...)" in str(raised.value.__cause__)
    store.close()


def test_a_fork_of_the_parent_spawns_under_other_names(store: Store) -> None:
    """Was broken: names without the step's beginning."""
    child = shipping(store)
    app = ordering(store, child)
    app.submit(order("a"), "order")
    work(app, child)
    first = app.state("order").state["children"]
    app.fork("order", 1)
    app.retry("order")
    work(app, child)
    assert app.state("order").state["log"] == ["box of a"]
    assert app.state("order").state["children"] != first


def test_a_fork_of_a_child_is_no_child(store: Store) -> None:
    """Was broken: the fork had the record's parent, and its tag."""
    child = shipping(store)
    app = ordering(store, child)
    app.submit(order("question"), "order")
    work(app, child)
    [name] = app.state("order").state["children"]
    head = next(child.history(name))
    child.fork(name, head.seq, "copy")
    app.cancel("order")
    assert rows(store)[name].status == "cancelled"
    assert rows(store)["copy"].status == "interrupted"


def test_grandchildren_are_cancelled_too(store: Store) -> None:
    leaf = shipping(store)
    middle = ordering(store, leaf)

    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.join(ctx.spawn(middle, order("question"))).status]}

    graph = StateGraph(Order, name="top")
    graph.add_node("spawn", spawn)
    graph.add_edges(START, "spawn", END)
    app = graph.compile(store=store)
    app.submit(order(), "order")
    work(app, middle, leaf)
    assert len(rows(store)) == 3
    app.cancel("order")
    assert {row.status for row in rows(store).values()} == {"cancelled"}
    assert nothing_is_outstanding(store)


@pytest.mark.parametrize("size", [3_000_000, 10])
def test_a_state_too_large_for_a_message_is_left_out(size: int) -> None:
    store = MemoryStore()
    graph = StateGraph(Shipment, name="shipping")
    graph.add_node("ship", lambda state: {"box": "x" * size})
    graph.add_edges(START, "ship", END)
    child = graph.compile(store=store)

    def join(state: Order, ctx: Context) -> dict[str, Any]:
        found = ctx.join(state["children"][0])
        return {"log": [found.status, "none" if found.state is None else "state"]}

    app = ordering(store, child, join=join)
    app.submit(order("a"), "order")
    work(app, child)
    assert app.state("order").state["log"] == ["completed", "none" if size > 10 else "state"]


def test_an_error_too_long_for_a_message_is_cut() -> None:
    """Was broken: the message was refused, again and again, and the parent waited for ever."""
    store = MemoryStore()
    item = "a" * 1_100_000

    def fail(state: Shipment) -> dict[str, Any]:
        raise ValueError(state["item"])

    graph = StateGraph(Shipment, name="shipping")
    graph.add_node("ship", fail)
    graph.add_edges(START, "ship", END)
    child = graph.compile(store=store)
    app = ordering(store, child)
    app.submit(order(item), "order")
    work(app, child)
    [said] = app.state("order").state["log"]
    assert said.startswith("failed: ValueError: aaa")
    assert len(said) < 20_000


def test_results_of_encrypted_children_are_sealed_for_the_parent(tmp_path: Path) -> None:
    """Was broken: the message sealed with the child's key."""
    store = SqliteStore(tmp_path / "runs.db")
    keys = Keyring({"main": b"k" * 32}, store=MemoryStore())
    child = shipping(store, encryption=keys)
    app = ordering(store, child, encryption=keys)
    app.submit(order("question", "secret"), "order")
    work(app, child)
    assert [one.value["state"]["box"] for one in app.mailbox("order")] == ["box of secret"]
    app.cancel("order")
    assert nothing_is_outstanding(store)
    app.retry("order")
    work(app, child)
    assert app.state("order").state["log"][1] == "box of secret"
    open_child = ordering(store, shipping(store), encryption=keys)
    with pytest.raises(Exception, match="must both encrypt, or neither"):
        open_child.invoke(order("a"), "another")
    store.close()
    assert b"box of secret" not in (tmp_path / "runs.db").read_bytes()


@dataclass
class Settings:
    size: str


def test_a_child_of_the_same_config_type_has_the_parents_config(store: Store) -> None:
    def pack(state: Shipment, ctx: Context) -> dict[str, Any]:
        return {"box": ctx.config.size}

    inner = StateGraph(Shipment, name="shipping", config=Settings)
    inner.add_node("pack", pack)
    inner.add_edges(START, "pack", END)
    child = inner.compile(store=store)

    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        own = {"item": "a", "box": ""}
        names = [ctx.spawn(child, own), ctx.spawn(child, own, config=Settings("small"))]
        return {"log": [told(ctx.join(name)) for name in names]}

    graph = StateGraph(Order, name="ordering", config=Settings)
    graph.add_node("spawn", spawn)
    graph.add_edges(START, "spawn", END)
    app = graph.compile(store=store)
    app.submit(order(), "order", config=Settings("large"))
    work(app, child)
    assert app.state("order").state["log"] == ["large", "small"]


def test_children_belong_to_the_whole_graph() -> None:
    store = MemoryStore()
    child = shipping(store)
    inner = StateGraph(Order, name="inner")

    @inner.node
    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        ctx.spawn(child, {"item": "a", "box": ""})
        return {}

    inner.add_edges(START, "spawn", END)
    outer = StateGraph(Order, name="outer")
    outer.add_node("inner", inner.compile())
    outer.add_edges(START, "inner", END)
    with pytest.raises(Exception, match="children belong to the thread of the whole graph"):
        outer.compile(store=store).invoke(order(), "order")


def test_wrong_arguments_of_spawn_are_refused() -> None:
    store = MemoryStore()
    child = shipping(store)
    refused = list[str]()

    def spawn(state: Order, ctx: Context) -> dict[str, Any]:
        for wrong in (
            lambda: ctx.spawn(child, {}, on_cancel=cast("Any", "stay")),
            lambda: ctx.spawn_many(child, [{}, {}], ["same", "same"]),
        ):
            with pytest.raises(InvalidRequest) as error:
                wrong()
            refused.append(error.value.message)
        return {}

    graph = StateGraph(Order, name="ordering")
    graph.add_node("spawn", spawn)
    graph.add_edges(START, "spawn", END)
    graph.compile(store=store).invoke(order(), "order")
    assert refused[0] == "on_cancel= takes 'cancel' or 'leave'"
    assert "one thread for each input" in refused[1]
