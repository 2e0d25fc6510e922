"""Discarding, cancelling, deleting and listing threads from outside of a run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    CheckpointStore,
    Conflict,
    ExecutionError,
    InvalidRequest,
    Keyring,
    StateGraph,
    Store,
    ThreadKey,
    Unavailable,
    append,
    interrupt,
)
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")
KEYS = "milecastle.keys"


class Chat(TypedDict):
    messages: Annotated[list[str], append]


class Job(TypedDict):
    kind: str
    ok: NotRequired[bool]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


def chat(store: Store | None, **settings: Any) -> App[Chat]:
    """Answers every message; ``bad`` fails, ``ask`` asks."""
    graph = StateGraph(Chat)

    def model(state: Chat) -> dict[str, Any]:
        last = state["messages"][-1]
        if last == "bad":
            raise ValueError(last)
        return {"messages": [interrupt("?", answer=str) if last == "ask" else f"re {last}"]}

    def done(state: Chat) -> None:
        return None

    graph.add_node("model", model)
    graph.add_node("done", done)
    graph.add_edges(START, "model", "done", END)
    return graph.compile(store=store, **settings)


def say(app: App[Chat], text: str, **policy: Any) -> list[str]:
    return app.invoke({"messages": [text]}, "t", **policy).state["messages"]


# -- discard


@pytest.mark.requirement("T4", "R2", api="App.invoke")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("how", ["failed", "interrupted", "cancelled"])
def test_thread_with_an_unfinished_run_can_be_given_another_input(
    stores: Stores, kind: str, before: int, how: str
) -> None:
    """Also in its first run, which left no way out but another thread.

    Broken on purpose: the new run started from the head, which still had the old message.
    """
    app = chat(stores.open(kind))
    if before:
        say(app, "hello")
    told = ["hello", "re hello"] * before
    if how == "failed":
        with pytest.raises(ExecutionError):
            say(app, "bad")
    else:
        say(app, "ask")
        if how == "cancelled":
            app.cancel("t")
    old = app.store.runs(KEY)[0]
    with pytest.raises(InvalidRequest, match="discard=True"):
        say(app, "again")
    assert say(app, "again", discard=True) == [*told, "again", "re again"]
    assert app.state("t").status == "completed"
    closed = app.store.run(KEY, old.run_id)
    assert closed is not None
    assert closed.status == ("superseded" if old.status == "interrupted" else old.status)
    assert app.store.failure(KEY, old.run_id) is not None
    entry = next(known for known in app.history("t") if known.note)
    assert (entry.source, entry.note) == ("input", f"discards run {old.run_id}")


def test_discarding_does_not_start_the_same_input_over() -> None:
    """A call with ``discard`` that is made again resumes what it had begun.

    Broken on purpose: ``discard`` looked at before the inputs are compared.
    """
    app = chat(MemoryStore())
    with pytest.raises(ExecutionError):
        say(app, "bad")
    say(app, "ask", discard=True)
    seq = app.state("t").seq
    assert say(app, "ask", discard=True) == ["ask"]
    assert app.state("t").seq == seq
    app.resume("t", "yes")
    assert say(app, "ask", discard=True) == ["ask", "yes"]


def test_run_whose_input_is_in_another_thread_is_not_discarded() -> None:
    """Nothing is known of the state before it. Broken on purpose: begun from an empty state."""
    app = chat(MemoryStore(), interrupt_before=["done"])
    say(app, "hello")
    app.fork("t", at=2, as_thread="u")
    head = app.state("u").seq
    with pytest.raises(InvalidRequest, match="started as a fork"):
        app.invoke({"messages": ["x"]}, "u", discard=True)
    assert app.state("u").seq == head


def test_input_that_does_not_fit_discards_nothing() -> None:
    """The old run is closed with the first entry of the new one, or not at all."""
    app = chat(MemoryStore())
    say(app, "ask")
    with pytest.raises(InvalidRequest):
        app.invoke({"messages": 3}, "t", discard=True)
    assert app.state("t").status == "interrupted"
    app.resume("t", "yes")


# -- cancel


@pytest.mark.requirement("X5", "R2", api="App.cancel")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_unfinished_run_is_closed_from_outside(stores: Stores, kind: str) -> None:
    """Nothing is decoded for it. Broken on purpose: no failure record written."""
    app = chat(stores.open(kind))
    say(app, "ask")
    run = app.state("t").run_id
    assert app.cancel("t") is True
    assert app.state("t").status == "cancelled"
    record, failure = app.store.run(KEY, run), app.store.failure(KEY, run)
    assert record is not None
    assert failure is not None
    assert (record.status, failure.error_type, failure.resumable) == (
        "cancelled",
        "RunCancelled",
        True,
    )
    assert app.cancel("t") is False
    assert app.resume("t", "yes").state == {"messages": ["ask", "yes"]}
    assert asyncio.run(app.acancel("t")) is False


def test_cancelling_what_is_not_there_says_so() -> None:
    """Broken on purpose: ``False`` returned for a name with a typing error."""
    with pytest.raises(InvalidRequest, match="there is no thread"):
        chat(MemoryStore()).cancel("nobody")


def test_process_whose_run_was_cancelled_stops_at_its_next_commit() -> None:
    """Broken on purpose: the record changed without an entry, which nothing fences."""
    app = chat(MemoryStore())
    events = app.stream({"messages": ["hello"]}, "t", mode="events")
    while next(events).type != "node_complete":
        pass
    assert app.cancel("t")
    with pytest.raises(Conflict):
        list(events)
    assert app.state("t").status == "cancelled"
    assert say(app, "hello") == ["hello", "re hello"]


def parent(store: Store, *others: str, **settings: Any) -> App[Chat]:
    """A graph in a graph in a graph that asks, and other nodes after it."""
    middle = StateGraph(Chat)
    middle.add_node("inner", chat(MemoryStore()))
    middle.add_edges(START, "inner", END)
    graph = StateGraph(Chat)
    graph.add_node("sub", middle.compile())
    for name in others:
        graph.add_node(name, lambda state: None)
    graph.add_edges(START, "sub", *others, END)
    return graph.compile(store=store, **settings)


def test_cancelling_closes_the_runs_of_subgraphs() -> None:
    """Broken on purpose: only the thread itself closed."""
    store = MemoryStore()
    app = parent(store)
    say(app, "ask")
    assert {info.status for info in store.threads("default")} == {"interrupted"}
    assert app.cancel("t")
    assert {info.status for info in store.threads("default")} == {"cancelled"}
    assert app.resume("t", "yes").state["messages"][-1] == "yes"


class Killed(WrappedStore):
    """A store whose process is killed: after ``commits_left`` commits, nothing arrives."""

    commits_left: int | None = None

    def commit(self, batch: Batch) -> None:
        if self.commits_left == 0:
            raise Unavailable("the process was killed")
        if self.commits_left is not None:
            self.commits_left -= 1
        super().commit(batch)


def same(state: dict[str, Any], next: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    return state, next


def migrate(app: App[Chat]) -> None:
    """Resume with a graph that has another node, to which the thread is migrated."""
    changed = parent(app.store, "other")
    changed.migrate(app.fingerprint, same)
    answers = dict.fromkeys([asked.id for asked in app.state("t").interrupts if asked.asks], "yes")
    changed.resume("t", answers=answers or None, take_over=True)


LEAVING: dict[str, Callable[[App[Chat]], object]] = {
    "fork": lambda app: app.fork("t", app.state("t").seq),
    "fork to an older checkpoint": lambda app: app.fork("t", 1),
    "update_state": lambda app: app.update_state("t", {"messages": []}),
    "put": lambda app: CheckpointStore(app.store).put(KEY, {"messages": ["hello"]}, next=("sub",)),
    "direct update_state": lambda app: CheckpointStore(app.store).update_state(
        KEY, app.state("t").id, new_state={"messages": ["hello"]}
    ),
    "discard": lambda app: say(app, "hello", discard=True, take_over=True),
    "migrate": migrate,
}


@pytest.mark.requirement("R2", api="Store.failure")
@pytest.mark.parametrize(
    ("kind", "before"),
    [
        *(pytest.param(*kind.values, "killed", marks=kind.marks) for kind in EVERY_KIND),
        ("memory", "interrupted"),
    ],
)
@pytest.mark.parametrize("how", LEAVING)
def test_leaving_a_step_closes_the_runs_of_its_subgraphs(
    stores: Stores, kind: str, before: str, how: str
) -> None:
    """One failure for each; two levels. Nothing finds these runs again.

    Seen to fail for all of ``LEAVING`` but ``discard``, of which it was seen before: the runs of
    the subgraphs stayed ``running`` or ``interrupted``.
    """
    store = Killed(stores.open(kind))
    app = parent(store)
    if before == "killed":
        store.commits_left = 3  # the inputs of the thread, its subgraph and the subgraph of that
        with pytest.raises(Unavailable):
            say(app, "ask")
        store.commits_left = None
    else:
        say(app, "ask")
    left = children(store)
    assert len(left) == 2
    assert {run.status for key in left for run in store.runs(key)} <= {"running", "interrupted"}
    LEAVING[how](app)
    for key in left:
        (run,) = store.runs(key)
        assert run.status == "cancelled"
        assert store.failure(key, run.run_id) is not None
        info = store.thread(key)
        assert info is not None
        assert info.status == "cancelled"
    if how not in ("discard", "migrate"):
        app.resume("t")
        assert len(children(store)) > 2


def test_step_that_could_not_be_left_is_resumed() -> None:
    """The process dies after it closed the subgraphs. Broken on purpose: the child not resumed."""
    store = Killed(MemoryStore())
    app = parent(store)
    say(app, "ask")
    store.commits_left = 2
    with pytest.raises(Unavailable):
        app.update_state("t", {"messages": ["more"]})
    store.commits_left = None
    assert {store.runs(key)[0].status for key in children(store)} == {"cancelled"}
    assert app.state("t").status == "interrupted"
    assert app.resume("t", "yes").state["messages"] == ["ask", "yes"]


def children(store: Store) -> list[ThreadKey]:
    return [info.key for info in store.threads("default") if info.key != KEY]


# -- delete, threads, close


@pytest.mark.requirement("S2", api="App.delete")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_deleting_takes_the_subgraphs_and_the_key(stores: Stores, kind: str) -> None:
    """Broken on purpose: the store's own ``delete`` called."""
    keys = MemoryStore()
    app = parent(stores.open(kind), encryption=Keyring({"main": b"k" * 32}, store=keys))
    say(app, "ask")
    app.invoke({"messages": ["hi"]}, "other")
    assert len(app.store.threads("default")) == 6
    assert app.delete("t") is True
    assert {info.key.thread.partition("\x1f")[0] for info in app.store.threads("default")} == {
        "other"
    }
    assert len(keys.threads(KEYS)) == 1
    assert asyncio.run(app.adelete("t")) is False
    assert app.invoke({"messages": ["hi"]}, "other").reused


def test_thread_that_is_driven_is_deleted_only_by_word() -> None:
    """Broken on purpose: the owner not looked at."""
    app = chat(MemoryStore())
    events = app.stream({"messages": ["hello"]}, "t", mode="events")
    while next(events).type != "node_complete":
        pass
    with pytest.raises(Conflict, match="in progress"):
        app.delete("t")
    assert app.delete("t", take_over=True)
    with pytest.raises(Conflict):
        list(events)
    with pytest.raises(InvalidRequest, match="there is no thread"):
        app.resume("t")


@pytest.mark.requirement("S2", api="App.threads")
def test_threads_of_an_app_are_listed_without_subgraphs() -> None:
    """Broken on purpose: ``store.threads`` returned as it is."""
    app = parent(MemoryStore(), tenant="acme")
    say(app, "ask")
    app.invoke({"messages": ["hi"]}, "u")
    app.invoke({"messages": ["hi"]}, ThreadKey("other", "v"))

    async def listed(**given: Any) -> list[str]:
        return [info.key.thread async for info in app.athreads(**given)]

    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["t", "u"]),
        ({"status": "interrupted"}, ["t"]),
        ({"limit": 1}, ["t"]),
        ({"after": "t"}, ["u"]),
        ({"tenant": "other"}, ["v"]),
    ]
    for given, expected in cases:
        assert [info.key.thread for info in app.threads(**given)] == expected
        assert asyncio.run(listed(**given)) == expected


@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
def test_closing_an_app_closes_its_stores(how: str) -> None:
    """That of the keys too; again is not an error. Broken on purpose: the keys left open."""
    keys = MemoryStore()
    app = chat(MemoryStore(), encryption=Keyring({"main": b"k" * 32}, store=keys))
    for closed in (app, app, chat(None)):
        if how == "blocking":
            closed.close()
        else:
            asyncio.run(closed.aclose())
    with pytest.raises(Unavailable):
        app.state("t")
    with pytest.raises(Unavailable):
        keys.threads(KEYS)


# -- a thread that is not preserved


class Between(WrappedStore):
    """Something happens right before the deletion of a thread, or right after; once each."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def delete(self, key: ThreadKey, **fence: Any) -> bool:
        if move := self.before:
            self.before = None
            move()
        found = super().delete(key, **fence)
        if move := self.after:
            self.after = None
            move()
        return found


def job(store: Store, ring: Keyring | None = None) -> App[Job]:
    graph = StateGraph(Job)

    def work(state: Job) -> dict[str, Any]:
        return {"ok": interrupt("ok?", answer=bool) if state["kind"] == "ask" else True}

    graph.add_node("work", work)
    graph.add_edges(START, "work", END)
    config = CheckpointConfig(store=store, preserve=False)
    return graph.compile(checkpoint=config, encryption=ring)


@pytest.mark.requirement("C3", "S9", api="CheckpointConfig")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("when", ["before", "after", "replaced"])
def test_run_that_waits_outlasts_the_end_of_one_that_is_not_preserved(
    stores: Stores, kind: str, encrypted: bool, when: str
) -> None:
    """Another process begins a run between the last commit of one and its deletion, or right after.

    Also if the thread was deleted meanwhile, and the new one has come exactly as far. Broken on
    purpose: deleted without a head; without its id; the key erased without looking whose it is.
    """
    inner = stores.open(kind)
    ring = Keyring({"main": os.urandom(32)}, store=MemoryStore()) if encrypted else None
    between = Between(inner)
    first, second = job(between, ring), job(inner, ring)
    told: list[str] = []

    def begin() -> None:
        if when == "replaced":
            inner.delete(KEY)
        told.append(second.invoke({"kind": "ask"}, "t").status)

    setattr(between, "after" if when == "after" else "before", begin)
    assert first.invoke({"kind": "plain"}, "t").status == "completed"
    assert told == ["interrupted"]
    assert second.resume("t", True).state == {"kind": "ask", "ok": True}
    assert list(inner.threads("default")) == []


def test_end_that_was_not_deleted_because_of_a_crash_is_returned_and_deleted() -> None:
    """Broken on purpose: the thread left when its result is returned."""

    class Died(Exception):
        pass

    def die() -> None:
        raise Died

    between = Between(MemoryStore())
    between.before = die
    app = job(between)
    with pytest.raises(Died):
        app.invoke({"kind": "plain"}, "t")
    assert app.invoke({"kind": "plain"}, "t").reused
    assert list(app.store.threads("default")) == []


def test_run_that_others_were_refused_beside_comes_to_its_end() -> None:
    """Broken on purpose: a refused driver ended the turn of the one that was first."""
    app = chat(MemoryStore())
    events = app.stream({"messages": ["hello"]}, "t", mode="events")
    while next(events).type != "node_complete":
        pass
    for _ in range(2):
        with pytest.raises(Conflict, match="in progress"):
            say(app, "hello")
    list(events)
    assert say(app, "hello") == ["hello", "re hello"]
    assert [run.status for run in app.store.runs(KEY)] == ["completed"]
