"""Attacks on long-term memory where it meets other features. Each says which defect it shows."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from milecastle import (
    END,
    START,
    CheckpointConfig,
    Context,
    ExecutionError,
    InvalidRequest,
    Keyring,
    Memory,
    Retry,
    StateGraph,
    Store,
    Timeout,
    current,
)
from milecastle.engine import task_port
from milecastle.engine.remembering import Remembered
from milecastle.errors import KeyNotFound, MemoryChanged
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_memory import PATH, a_write
from milecastle.testing.entries import Writer, a_key
from tests.acceptance.fleet.test_callers_transaction import conninfo_of
from tests.acceptance.memory.test_remembering import (
    FACTS,
    START_INPUT,
    Talk,
    line,
    racing,
    versions,
)


def test_an_embedding_that_comes_late_changes_nothing() -> None:
    """Fails if an attempt that is over replaces what the next one has written, by task id."""
    first, second, over = threading.Event(), threading.Event(), threading.Event()
    late: list[BaseException] = []

    def embed(texts: list[str]) -> list[list[float]]:
        first.set()
        second.wait(5)
        return [[1.0, 0.0] for _ in texts]

    def node(state: Talk, ctx: Context) -> None:
        if ctx.attempt == 1:
            try:
                ctx.memory.put(FACTS, "late", "slow", embed=True)
            except InvalidRequest as refused:
                late.append(refused)
            over.set()
            return
        assert first.wait(5)
        ctx.memory.put(FACTS, "own", 1)
        second.set()
        assert over.wait(5)

    policy = {"retry": Retry(attempts=2, delay=0), "timeout": Timeout(run=0.1)}
    app = line(MemoryStore(), node, policy=policy, memory=Memory(embed=embed, dims=2))
    app.invoke(START_INPUT, "t")
    assert versions(app, "own", "late") == [1, 0]
    assert "is over" in str(late[0])


def test_first_writes_of_parallel_tasks_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the first task of a run makes the collection: two first ones made two of them."""

    def slow() -> Remembered:
        time.sleep(0.05)
        return Remembered()

    monkeypatch.setattr(task_port, "Remembered", slow)
    begin = threading.Barrier(8, timeout=5)

    def put(state: Talk, ctx: Context) -> None:
        begin.wait()
        ctx.memory.put(FACTS, ctx.node, 1)

    graph: StateGraph[Any] = StateGraph(Talk)
    names = [f"n{number}" for number in range(8)]
    for name in names:
        graph.add_node(name, put)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store=MemoryStore())
    app.invoke(START_INPUT, "t")
    assert versions(app, *names) == [1] * 8


def test_threads_of_one_node_write_together() -> None:
    """Fails if ``Remembered`` has no lock: its collection is made, and counted, by each thread."""

    def node(state: Talk, ctx: Context) -> None:
        def put(number: int) -> None:
            for place in range(30):
                ctx.memory.put(FACTS, f"k{number}.{place}", 1)

        each = [threading.Thread(target=put, args=(number,)) for number in range(8)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()

    app = line(MemoryStore(), node)
    app.invoke(START_INPUT, "t")
    assert len(app.memory.list(FACTS, limit=999)) == 240


@pytest.mark.parametrize("is_open", [False, True])
def test_a_joined_batch_writes_its_memory(store: Store, is_open: bool) -> None:
    """Fails if ``commit`` of a joined store leaves ``Batch.memory`` out, or out of its transaction.

    ``is_open``: the caller's transaction has begun, so that PostgreSQL writes in a savepoint.
    """
    if store.join is None:
        pytest.skip("the store joins no transaction")
    assert store.memory is not None
    writer = Writer(a_key("t", "tenant"))
    writer.append(store)
    memory = (a_write(if_version=0), a_write("other"), a_write("none", None))
    with closing(_connected(store)) as mine:
        if is_open:
            mine.execute("CREATE TABLE IF NOT EXISTS own (n integer)")
        joined = store.join(mine, writer.key)
        with pytest.raises(MemoryChanged):
            joined.commit(writer.batch(writer.plan(), memory=(a_write(if_version=7),)))
        joined.commit(writer.batch(writer.plan(), memory=memory))
        mine.rollback()
        assert store.memory.get("tenant", PATH, "tea") is None
        joined.commit(writer.batch(writer.plan(), memory=memory))
        mine.commit()
    found = [store.memory.get("tenant", PATH, key) for key in ("tea", "other", "none")]
    assert [one and (one.version, one.thread, one.seq) for one in found] == [
        (1, "t", 2),
        (1, "t", 2),
        None,
    ]


def _connected(store: Store) -> Any:
    if isinstance(store, SqliteStore):
        return sqlite3.connect(store.path)
    return psycopg.connect(conninfo_of(store))


def test_a_put_and_a_deletion_in_one_task_compare(store: Store) -> None:
    """Fails if PostgreSQL drops ``if_version`` of a put that the same task deletes."""
    app = line(store)
    app.memory.put(FACTS, "n", 1)

    def node(state: Talk, ctx: Context) -> None:
        ctx.memory.put(FACTS, "n", 2, if_version=7)
        ctx.memory.delete(FACTS, "n")

    with pytest.raises(ExecutionError) as failed:
        line(store, node).invoke(START_INPUT, "t")
    assert isinstance(failed.value.__cause__, MemoryChanged)
    assert versions(app, "n") == [1]


def test_a_namespace_that_no_index_holds_is_refused(store: Store) -> None:
    """Fails with an error of PostgreSQL's index, on that store alone."""
    app = line(store)
    longest = (*("é" * 128,) * 5, "a" * 250)
    app.memory.put(longest, "k", 1)
    assert app.memory.namespaces(longest) == [longest]
    for long in ((*longest[:5], "a" * 251), ("a" * 200,) * 16):
        with pytest.raises(InvalidRequest, match="shorten its labels"):
            app.memory.put(long, "k", 1)


def test_pages_of_namespaces_are_full(store: Store) -> None:
    """Fails if a namespace that the task has emptied takes a place of the page."""
    app = line(store)
    spaces = [("n", str(number)) for number in range(9)]
    for space in spaces:
        app.memory.put(space, "k", 1)
    app.memory.put((*spaces[0], "deeper"), "k", 1)
    pages: list[Any] = []

    def node(state: Talk, ctx: Context) -> None:
        for space in spaces[:4]:
            ctx.memory.delete(space, "k")
        ctx.memory.put(("n", "00"), "new", 1)
        pages.append(ctx.memory.namespaces(("n",), limit=4))
        pages.append(ctx.memory.namespaces(("n",), limit=4, after=pages[0][-1]))

    line(store, node).invoke(START_INPUT, "t")
    assert pages == [[(*spaces[0], "deeper"), ("n", "00"), *spaces[4:6]], spaces[6:9]]


def test_an_item_that_came_after_its_subject_was_erased_is_left_out(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if one item that nobody can open breaks each list, or another keyring hides all."""
    keyring = Keyring({"k": b"k" * 32}, store=MemoryStore())
    encryption: dict[str, Any] = {"encryption": keyring, "memory": Memory(index_plain=True)}
    outside = line(store, **encryption).memory

    def node(state: Talk, ctx: Context) -> None:
        ctx.memory.put(FACTS, "late", "late", words=True)
        assert outside.erase(subject="u7") == 1

    app = line(store, node, **encryption)
    app.memory.put(FACTS, "early", "early")
    app.memory.put(("users", "u8"), "other", "other", words=True)
    app.invoke(START_INPUT, "t")
    assert app.memory.get(FACTS, "late") is None
    assert [item.key for item in app.memory.list()] == ["other"]
    assert [item.key for item in app.memory.list(limit=1)] == ["other"]
    assert [hit.item.key for hit in app.memory.search(words="late other")] == ["other"]
    assert "erase the subject again" in caplog.text
    app.memory.put(FACTS, "again", 1)
    assert [item.key for item in app.memory.list(FACTS)] == ["again"]
    assert app.memory.erase(subject="u7") == 2
    for wrong in (
        Keyring({"k": b"k" * 32}, store=MemoryStore()),
        Keyring({"other": b"o" * 32}, store=keyring._keys.store),  # pyright: ignore[reportPrivateUsage]
    ):
        with pytest.raises(KeyNotFound):
            line(store, encryption=wrong).memory.list()


def test_a_file_is_refused(tmp_path: Path) -> None:
    """Fails if memory keeps a file's name longer than object storage keeps its content."""
    (tmp_path / "a.txt").write_text("hello")

    def node(state: Talk, ctx: Context) -> None:
        ctx.memory.put(FACTS, "file", {"kept": [ctx.file(tmp_path / "a.txt")]})

    app = line(f"sqlite:///{tmp_path}/m.db", node, objects=f"file://{tmp_path}/objects")
    with pytest.raises(ExecutionError) as failed:
        app.invoke(START_INPUT, "t")
    assert "keep its name" in str(failed.value.__cause__)
    with pytest.raises(InvalidRequest, match="item 'file' has a File"):
        app.memory.put(FACTS, "file", app.files.store(tmp_path / "a.txt"))
    assert app.memory.list() == []


def test_the_node_that_was_refused_is_named() -> None:
    """Fails if a step of several tasks blames its first node for the write of another."""
    log: list[int] = []

    def other(state: Talk, ctx: Context) -> None:
        ctx.memory.put(FACTS, "other", 1)

    store = MemoryStore()
    graph: StateGraph[Any] = StateGraph(Talk)
    graph.add_node("other", other)
    graph.add_node("race", racing(store, 99, log))
    for name in ("other", "race"):
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store=store)
    with pytest.raises(ExecutionError, match="node 'race' failed") as failed:
        app.invoke(START_INPUT, "t")
    assert isinstance(failed.value.__cause__, MemoryChanged)
    state = app.state("t")
    failure = store.failure(state.key, state.run_id)
    assert failure is not None
    assert failure.node == "race"
    assert versions(app, "other") == [0]


@pytest.mark.parametrize("interval", [1, 2, 10])
@pytest.mark.parametrize("how", ["race", "current", "two"])
def test_a_refused_step_leaves_no_update(store: Store, interval: int, how: str) -> None:
    """Fails if the batch of the failure has the update of a step whose memory was refused."""
    log: list[int] = []
    race = racing(store, 99, log)

    def plain(state: Talk) -> dict[str, Any]:
        return {"log": ["plain"]}

    def with_context(state: Talk, ctx: Context) -> dict[str, Any]:
        return race(state, ctx)

    def found(state: Talk) -> dict[str, Any]:
        return race(state, current())

    def compare(state: Talk) -> dict[str, Any]:
        current().memory.put(FACTS, "n", 1, if_version=0)
        return {"log": ["compared"]}

    graph: StateGraph[Any] = StateGraph(Talk)
    graph.add_node("a", plain)
    graph.add_node("b", plain)
    graph.add_edges(START, "a", "b")
    kinds: dict[str, list[Any]] = {
        "race": [with_context],
        "current": [found],
        "two": [compare, compare],
    }
    last = kinds[how]
    for number, node in enumerate(last):
        graph.add_node(f"c{number}", node)
        graph.add_edge("b", f"c{number}")
        graph.add_edge(f"c{number}", END)
    app = graph.compile(checkpoint=CheckpointConfig(store=store, interval=interval))
    with pytest.raises((ExecutionError, InvalidRequest)):
        app.invoke(START_INPUT, "t")
    state = app.state("t")
    assert (state.status, state["log"]) == ("failed", ["plain", "plain"])
    assert state.next == tuple(f"c{number}" for number in range(len(last)))


@pytest.mark.parametrize("interval", [1, 2, 10])
def test_a_step_that_is_stopped_before_its_commit_leaves_nothing(interval: int) -> None:
    """Fails if a run that is stopped in a router saves the step, whose node then runs again."""
    asked: list[int] = []

    def plain(state: Talk) -> dict[str, Any]:
        return {"log": ["plain"]}

    def learn(state: Talk) -> dict[str, Any]:
        current().memory.put(FACTS, "n", 1)
        return {"log": ["learned"]}

    def route(state: Talk) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return END

    graph: StateGraph[Any] = StateGraph(Talk)
    graph.add_node("plain", plain)
    graph.add_node("learn", learn)
    graph.add_edges(START, "plain", "learn")
    graph.add_conditional_edges("learn", route, [END])
    app = graph.compile(checkpoint=CheckpointConfig(store=MemoryStore(), interval=interval))
    with pytest.raises(KeyboardInterrupt):
        app.invoke(START_INPUT, "t")
    assert versions(app, "n") == [0]
    assert app.resume("t")["log"] == ["plain", "learned"]
    assert versions(app, "n") == [1]
