"""Flows run by workers: children, drains, encryption, streams, and flows in graphs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from threading import Event
from typing import Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    File,
    Keyring,
    ResumeRefused,
    StateGraph,
    ThreadKey,
    Worker,
    WorkerOptions,
    current,
    flow,
    interrupt,
    join,
    receive,
    sleep,
    spawn,
    step,
)
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading.store import OffloadingStore
from milecastle.stores.sqlite.store import SqliteStore


def work(*apps: App[Any], adopt_after: float | None = 1.0) -> None:
    asyncio.run(Worker(list(apps), WorkerOptions(adopt_after=adopt_after)).run_until_idle())


async def double(number: int) -> int:
    return number * 2


@flow
async def child(number: int) -> int:
    return await step(double, number, name="double")


@pytest.mark.requirement("D3")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_flows_spawn_flows_and_join_them(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "runs.db")
    children = child.compile(store=store)

    @flow
    async def parent(count: int) -> list[int]:
        names = [await spawn(children, child.input(number)) for number in range(count)]
        return [(await join(name)).state["result"] for name in names]

    @flow
    def sync_parent(count: int) -> list[int]:
        names = [spawn(children, child.input(number)) for number in range(count)]
        return [join(name).state["result"] for name in names]

    for declared in (parent, sync_parent):
        app: App[Any] = declared.compile(store=store)
        app.submit({"count": 3}, thread=declared.name)
        work(app, children)
        assert app.state(declared.name).state["result"] == [0, 2, 4]
        assert app.replay(declared.name).verdict in ("same", "continues")


@pytest.mark.requirement("D3")
def test_a_worker_that_drains_releases_a_flow_with_its_next_call(tmp_path: Path) -> None:
    """Fails if the flow continues after the entry that released its run."""
    calls: list[int] = []
    begun = Event()

    def slow(number: int) -> int:
        calls.append(number)
        begun.set()
        time.sleep(0.05)
        return number

    @flow
    def long(count: int) -> int:
        return sum(step(slow, number) for number in range(count))

    app = long.compile(store=SqliteStore(tmp_path / "runs.db"))
    app.submit(long.input(10), thread="t")

    async def drain() -> None:
        worker = Worker([app])
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(begun.wait)
        worker.stop()
        await running

    asyncio.run(drain())
    assert app.state("t").status == "queued"
    assert len(calls) < 10
    work(app)

    assert app.state("t").state["result"] == 45
    assert calls == list(range(10))


@pytest.mark.requirement("D2")
def test_a_worker_with_other_code_leaves_a_flow_to_the_right_one(tmp_path: Path) -> None:
    """Fails if refused code leaves the thread with a worker, or as failed."""
    store = SqliteStore(tmp_path / "runs.db")

    @flow(name="f")
    def right() -> str:
        step(str, 1)
        return str(receive("go"))

    @flow(name="f")
    def wrong() -> str:
        return str(receive("go"))

    app, other = right.compile(store=store), wrong.compile(store=store)
    assert app.fingerprint == other.fingerprint
    app.submit({}, thread="t")
    work(app)
    app.send("t", "went", "go")
    head = store.head(app.state("t").key)

    async def refuse() -> None:
        worker = Worker([other])
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0.4)
        worker.stop()
        await running

    asyncio.run(refuse())
    assert store.head(app.state("t").key) == head
    time.sleep(1.1)  # the worker that refused it gave it back with a delay
    work(app)

    assert app.state("t").state["result"] == "went"


@pytest.mark.requirement("D3")
def test_calls_are_encrypted_with_their_thread(tmp_path: Path) -> None:
    @flow
    def secret(word: str) -> str:
        step(str, word + word)
        interrupt("go on?")
        return word

    path = tmp_path / "runs.db"
    ring = Keyring({"k": b"k" * 32}, store=f"sqlite:///{tmp_path}/keys.db")
    app = secret.compile(store=f"sqlite:///{path}", encryption=ring)
    app.invoke(secret.input("hidden"), thread="t")
    app.store.close()

    assert not any(b"hidden" in found.read_bytes() for found in tmp_path.iterdir())
    app = secret.compile(store=f"sqlite:///{path}", encryption=ring)
    assert app.replay("t").calls == 2
    assert app.resume("t", answer=1).state["result"] == "hidden"


def test_a_flow_streams_what_its_steps_emit() -> None:
    def say(word: str) -> str:
        current().emit(word)
        return word

    @flow
    def talk() -> str:
        return str(step(say, "hello"))

    app = talk.compile(store=MemoryStore())

    events = app.stream({}, thread="t", mode="events")

    assert [event.update for event in events if event.type == "emit"] == ["hello"]


class Order(TypedDict):
    number: int
    result: int


def test_a_flow_is_a_node_of_a_graph() -> None:
    @flow
    def pay(number: int) -> int:
        step(str, number)
        sleep(-1)
        return number + int(interrupt("how much?", answer=int))

    graph = StateGraph(Order)
    graph.add_node("pay", pay.compile())
    graph.add_edges(START, "pay", END)
    app = graph.compile(store=MemoryStore())
    assert app.invoke({"number": 4, "result": 0}, thread="t").status == "interrupted"

    assert app.resume("t", answer=3).state["result"] == 7


def test_a_flow_in_a_graph_receives_no_messages() -> None:
    @flow
    def listen() -> Any:
        return receive("go")

    graph = StateGraph(Order)
    graph.add_node("listen", listen.compile())
    graph.add_edges(START, "listen", END)

    with pytest.raises(Exception, match="InvalidRequest"):
        graph.compile(store=MemoryStore()).invoke({"number": 1, "result": 0}, thread="t")


def test_an_update_and_another_version(tmp_path: Path) -> None:
    """Two versions are two lanes: neither worker takes the other's threads."""
    store = SqliteStore(tmp_path / "runs.db")

    @flow(name="f", version="1")
    def one() -> str:
        return str(step(str, 1))

    @flow(name="f", version="2")
    def two() -> str:
        return str(step(repr, 2))

    first, second = one.compile(store=store), two.compile(store=store)
    first.submit({}, thread="one")
    second.submit({}, thread="two")
    work(second, adopt_after=None)
    assert first.state("one").status == "queued"
    work(first)

    assert first.state("one").state["result"] == "1"
    assert second.state("two").state["result"] == "2"
    with pytest.raises(ResumeRefused):
        second.resume("one")


def test_the_entry_of_a_call_names_its_files(tmp_path: Path) -> None:
    """Fails if files are not found in the encoded values of calls: a sweep would remove them."""
    digests: list[str] = []

    @step
    def write() -> list[File]:
        found = current().file(tmp_path / "report")
        digests.append(found.digest)
        return [found]

    @flow
    def keep() -> bytes:
        (found,) = write()
        interrupt("go on?")
        with current().open_file(found) as opened:
            return opened.read()

    (tmp_path / "report").write_bytes(b"content")
    app = keep.compile(store="memory://", objects=f"file://{tmp_path}/objects")
    app.invoke({}, thread="t")
    key, store = ThreadKey("default", "t"), app.store
    assert isinstance(store, OffloadingStore)

    recorded = [entry for entry in store.inner.entries(key) if entry.note]
    assert all(bytes.fromhex(digests[0]) in entry.payload for entry in recorded)
    assert app.resume("t", answer=1).state["result"] == b"content"
