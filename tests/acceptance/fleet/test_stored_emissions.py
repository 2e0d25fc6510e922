"""Values emitted with ``keep`` are stored while their step runs, and read by offset."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Barrier, Event, Timer
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    ExecutionError,
    Keyring,
    Retry,
    Send,
    StateGraph,
    Store,
    ThreadKey,
    ThreadNotFound,
    UnserializableState,
    append,
    interrupt,
)
from milecastle.drivers.chunks import ValueChunks
from milecastle.errors import Unavailable
from milecastle.server.events import read_thread
from milecastle.server.service import Service
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import crash_everywhere
from tests.acceptance.fleet.working import serving, until

KEY = ThreadKey("default", "t")


class Talk(TypedDict):
    said: Annotated[list[str], append]


def alone(store: Store | None, node: Any, *, retry: Any = None, **options: Any) -> App[Talk]:
    graph = StateGraph(Talk, name="talk")
    graph.add_node("talk", node, retry=retry).add_edges(START, "talk", END)
    return graph.compile(store=store, **options)


def values(app: App[Any], after: Any = None) -> list[Any]:
    return [one.value for one in app.emitted("t", after=after)]


def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chunk is due before it is full."""

    def never(timer: Timer) -> None:
        pass

    monkeypatch.setattr(Timer, "start", never)


@pytest.mark.requirement("M10")
def test_a_reader_gets_full_chunks_by_offset_while_the_step_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: values written when the node ends; then, rows without their offset."""
    unhurried(monkeypatch)
    seen: list[Any] = []

    def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        for number in range(100):
            ctx.emit({"n": number}, keep=True)
        found = app.emitted("t")
        seen.append([(one.attempt, one.offset, one.value["n"], one.begins) for one in found])
        last = found[49]
        seen.append([one.offset for one in app.emitted("t", after=last)])
        seen.append([one.offset for one in app.emitted("t", after=(last.attempt, last.offset))])
        return {"said": ["done"]}

    app = alone(store, talk)
    app.invoke({"said": []}, "t")
    assert seen[0] == [(1, number, number, number == 0) for number in range(96)]
    assert seen[1] == seen[2] == [*range(50, 96)]
    assert app.emitted("t") == []  # the state has the result
    with pytest.raises(ThreadNotFound):
        app.emitted("nothing")


def test_a_chunk_that_is_not_full_is_stored_soon() -> None:
    """Was broken: chunks written only when another value comes."""
    stored, seen = Event(), list[Any]()

    class Watched(MemoryStore):
        def commit(self, batch: Any) -> None:
            super().commit(batch)
            if any(">#" in row.task for row in batch.results):
                stored.set()

    def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        ctx.emit("first", keep=True)
        assert stored.wait(30)
        seen.extend(values(app))
        return {}

    app = alone(Watched(), talk)
    app.invoke({"said": []}, "t")
    assert seen == ["first"]


def test_an_async_node_stores_what_it_emits(tmp_path: Path) -> None:
    """Was broken: the event loop blocked by the commit, which a blocking store refuses."""
    seen: list[Any] = []

    async def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        for number in range(40):
            await ctx.aemit(number, keep=True)
        seen.extend([one.value for one in await app.aemitted("t")])
        return {}

    app = alone(SqliteStore(tmp_path / "s.db"), talk)
    asyncio.run(app.ainvoke({"said": []}, "t"))
    assert seen[:32] == [*range(32)]


def test_a_retry_begins_again_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: each run numbers its attempts from 1, so that a retry replaced the first rows."""
    unhurried(monkeypatch)
    seen: list[Any] = []

    def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        for number in range(33):
            ctx.emit(number, keep=True)
        found = app.emitted("t")
        seen.append([(one.attempt, one.offset) for one in found if one.begins])
        if len(seen) < 4:
            raise ValueError("again")
        return {}

    app = alone(MemoryStore(), talk, retry=Retry(attempts=2, delay=0.0))
    with pytest.raises(ExecutionError):
        app.invoke({"said": []}, "t")
    failed = app.emitted("t")
    assert [one.offset for one in failed] == [*range(66)]  # the failure took the rest along
    app.invoke({"said": []}, "t")
    assert seen == [
        [(1, 0)],
        [(1, 0), (2, 33)],
        [(1, 0), (2, 33), (3, 66)],
        [(1, 0), (2, 33), (3, 66), (4, 99)],
    ]


def test_a_question_keeps_what_was_emitted_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: values that were not due yet dropped at the pause."""
    unhurried(monkeypatch)

    def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        ctx.emit("thinking", keep=True)
        return {"said": [interrupt("well?")]}

    app = alone(MemoryStore(), talk)
    app.invoke({"said": []}, "t")
    assert values(app) == ["thinking"]
    (first,) = app.emitted("t")
    app.resume("t", "yes")
    assert values(app) == []
    assert (first.node, first.task, first.attempt) == ("talk", "talk", 1)


def test_values_of_another_step_are_behind_those_of_the_last() -> None:
    """Was broken: offsets compared although they are of different steps."""
    seen: list[Any] = []

    def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        for number in range(32 if ctx.step == 2 else 64):
            ctx.emit(f"{ctx.step}.{number}", keep=True)
        found = app.emitted("t", after=seen[-1] if seen else None)
        seen.extend(found)
        return {}

    graph = StateGraph(Talk)
    graph.add_node("a", talk).add_node("b", talk).add_edges(START, "a", "b", END)
    app = graph.compile(store=MemoryStore())
    app.invoke({"said": []}, "t")
    assert [one.value for one in seen] == [
        *(f"1.{number}" for number in range(64)),
        *(f"2.{number}" for number in range(32)),
    ]


def test_parallel_tasks_share_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: two buffers for one step, each counting from 0."""
    unhurried(monkeypatch)
    seen: list[Any] = []
    all_have_emitted = Barrier(4)

    def item(state: Any, ctx: Context) -> dict[str, Any]:
        for number in range(64):
            ctx.emit((ctx.task, number), keep=True)
        if all_have_emitted.wait(30) == 0:
            seen.extend(app.emitted("t"))
        return {"said": [ctx.task]}

    graph = StateGraph(Talk)
    graph.add_node("start", lambda state: {}).add_node("item", item).add_edges(START, "start")
    graph.add_conditional_edges("start", lambda _: [Send("item", {})] * 4, ["item"])
    graph.add_edge("item", END)
    app = graph.compile(store=MemoryStore())
    app.invoke({"said": []}, "t")
    assert len(seen) > 256 - 32  # the rest is not due yet
    assert [one.offset for one in seen] == [*range(len(seen))]
    for task in {one.task for one in seen}:
        numbers = [one.value[1] for one in seen if one.task == task]
        assert numbers == [*range(len(numbers))]


def test_a_value_is_stored_as_it_was_when_it_was_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: the chunk encoded later; and an error raised in the timer's thread."""
    unhurried(monkeypatch)

    def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        growing: list[int] = []
        for number in range(32):
            growing.append(number)
            ctx.emit(growing, keep=True)
        assert [len(value) for value in values(app)] == [*range(1, 33)]
        with pytest.raises(UnserializableState):
            ctx.emit(object(), keep=True)
        return {}

    app = alone(MemoryStore(), talk)
    app.invoke({"said": []}, "t")


def test_without_a_store_a_kept_value_is_emitted() -> None:
    """Was broken: ``keep`` refused without a store."""

    def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        ctx.emit(1, keep=True)
        return {}

    events = alone(None, talk).stream({"said": []})
    assert [event.update for event in events if event.type == "emit"] == [1]


def test_encrypted_values_are_read_with_the_key_only(tmp_path: Path) -> None:
    """Was broken (the control): rows in the clear."""
    found: list[bool] = []
    for encrypts in (False, True):
        path = tmp_path / f"{encrypts}.db"
        keys = Keyring({"main": b"k" * 32}, store=MemoryStore()) if encrypts else None

        def talk(state: Talk, ctx: Context) -> dict[str, Any]:
            ctx.emit("recognizable", keep=True)
            return {"said": [interrupt("well?")]}

        app = alone(SqliteStore(path), talk, encryption=keys)
        app.invoke({"said": []}, "t")
        assert values(app) == ["recognizable"]
        app.store.close()
        found.append(b"recognizable" in path.read_bytes())
    assert found == [True, False]


def test_a_follower_gets_stored_values_in_order(store: Store) -> None:
    """Was broken: a follower that comes late got nothing; one that was there, each value twice."""
    asyncio.run(followed(store))


async def followed(store: Store) -> None:
    told, go = asyncio.Event(), asyncio.Event()

    async def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        for number in range(80):
            await ctx.aemit(number, keep=True)
        told.set()
        await go.wait()
        for number in range(80, 100):
            await ctx.aemit(number, keep=True)
        return {"said": ["done"]}

    app = alone(store, talk)
    app.submit({"said": []}, "t")
    async with serving(app):
        await told.wait()

        async def all_stored() -> bool:
            return len(await app.aemitted("t")) == 80

        await until(all_stored)
        found: list[Any] = []
        async for event in app.afollow("t", emitted=True):
            if event.type == "emit":
                found.append(event.update)
            if found == [*range(80)]:
                go.set()
        assert found[:80] == [*range(80)]
        assert found == [*range(len(found))]


@pytest.mark.requirement("M10")
def test_a_browser_that_reconnects_gets_the_rest(store: Store) -> None:
    """Was broken: ids without the checkpoint, so that a reader which comes back after the step
    missed the checkpoints in between.
    """
    asyncio.run(reconnected(store))


async def reconnected(store: Store) -> None:
    go = asyncio.Event()

    async def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        for number in range(64):
            await ctx.aemit(number, keep=True)
        if ctx.step == 1:
            await go.wait()
        return {"said": ["done"]}

    graph = StateGraph(Talk, name="talk")
    graph.add_node("a", talk).add_node("b", talk).add_edges(START, "a", "b", END)
    app = graph.compile(store=store)
    app.submit({"said": []}, "t")
    service = Service([app], worker=False)
    seen: list[tuple[str, Any]] = []
    async with serving(app):
        while not seen or seen[-1][0] != "stopped":
            last = [int(part) for part in seen[-1][0].split(".")] if seen else [0]
            stored = last[2] + 1 if len(last) > 1 else 0
            texts = await read_thread(service, KEY, last[0], stored)
            async for text in texts:
                if text and b"event: stopped" not in text:
                    id, _, data = text.decode().partition("\n")
                    value = msgspec.json.decode(data.partition("data: ")[2]).get("value")
                    seen.append((id.removeprefix("id: "), value))
                elif text:
                    seen.append(("stopped", None))
                if len(seen) > 60:
                    go.set()
                if text and (len(seen) % 10 == 0 or seen[-1][0] == "stopped"):
                    break
            await texts.aclose()
    found = [value for _, value in seen if value is not None]
    assert found[:64] == [*range(64)]
    assert found[64:] == [*range(len(found) - 64)]  # the last step may end before it is read
    states = [int(id) for id, _ in seen if id.isdigit()]
    assert states == [*range(1, len(states) + 1)]


def test_no_crash_changes_a_graph_that_stores_what_it_emits() -> None:
    """Was broken: a stored value taken for the outcome of a task."""

    def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        for number in range(70):
            ctx.emit(number, keep=True)
        return {"said": [str(ctx.once("one", lambda: "one"))]}

    report = crash_everywhere(alone(MemoryStore(), talk), {"said": []})
    assert report.effects >= 5  # two chunks among them


def test_values_whose_commit_failed_are_committed_with_the_next() -> None:
    """Was broken: a failed chunk left a gap, which its readers never pass."""
    made: list[Any] = []
    fails = [True]

    def commit(batch: Any) -> None:
        if fails.pop() if fails else False:
            raise Unavailable("away")

    def make(offset: int, found: list[Any]) -> Any:
        made.append((offset, len(found)))

    async def acommit(batch: Any) -> None: ...

    class Batched(ValueChunks):
        def _begin(self) -> Any:
            before = len(made)
            super()._begin()
            return True if len(made) > before else None

    found = Batched(0, make, commit, acommit, None)
    for number in range(32):
        found.add(number)
    with pytest.raises(Unavailable):
        found.flush()
    found.add(32)
    found.flush()
    assert made == [(0, 32), (0, 33)]
    assert found.close() == (33, [])
