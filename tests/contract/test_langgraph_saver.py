"""The LangGraph saver: LangGraph's own conformance suite, and what that does not ask."""

from __future__ import annotations

import asyncio
import json
import operator
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.base")

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from milecastle import END, START, StateGraph
from milecastle.app.threads.pruning import prune_thread
from milecastle.codec.deltas import LogCodec
from milecastle.codec.values import UntypedCodec
from milecastle.errors import Conflict, InvalidRequest, ResumeRefused, Unavailable
from milecastle.integrations.langgraph import MilecastleSaver
from milecastle.integrations.langgraph.naming import key_of
from milecastle.integrations.langgraph.serde import StrictSerializer
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from tests.contract.langgraph_clauses import CLAUSES, Make, Secret, place, put, values_at
from tests.every_store import POSTGRES, Stores

KINDS = ["memory", "sqlite", pytest.param("postgres", marks=POSTGRES)]


@pytest.fixture
def stores(tmp_path: Path) -> Generator[Stores]:
    made = Stores(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, stores: Stores) -> Store:
    return stores.open(request.param)


@pytest.fixture
def saver(store: Store) -> MilecastleSaver:
    return MilecastleSaver(store)


def test_conformance_suite_passes_completely(store: Store, stores: Stores) -> None:
    """Fails if any of its 81 clauses does, or if it finds fewer."""
    conformance: Any = pytest.importorskip("langgraph.checkpoint.conformance")
    tenants = iter(range(100))

    async def make() -> AsyncGenerator[MilecastleSaver, None]:
        yield MilecastleSaver(store, tenant=f"tenant-{next(tenants)}")

    registered = conformance.checkpointer_test(name="MilecastleSaver")(make)
    report = asyncio.run(conformance.validate(registered))
    failures = {name: found.failures for name, found in report.results.items() if found.failures}
    assert failures == {}
    assert sum(found.tests_passed for found in report.results.values()) == 81


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_clause_of_ours_holds(clause: Callable[[Make], None], store: Store) -> None:
    """Seen to fail with each of the faults that the clauses name."""
    clause(lambda: MilecastleSaver(store))


def test_growing_list_is_stored_as_what_was_appended(saver: MilecastleSaver, store: Store) -> None:
    """Of text that cannot be compressed. Seen to fail when a list is written again."""
    config = place()
    items: list[str] = []
    for step in range(300):
        items = [*items, token_hex(50)]
        config = put(saver, config, {"items": items}, step)
    written = sum(len(entry.payload) for entry in store.entries(ThreadKey("default", "t")))
    assert written < 300 * 1_000 + 2 * 300 * 100
    assert values_at(MilecastleSaver(store), place()) == {"items": items}


def test_lists_of_objects_grow_by_what_was_appended(saver: MilecastleSaver, store: Store) -> None:
    """Seen to fail when a list is written again."""
    messages: Any = pytest.importorskip("langchain_core.messages")
    config = place()
    said: list[Any] = []
    for step in range(50):
        said = [*said, messages.HumanMessage(token_hex(50), id=str(step))]
        config = put(saver, config, {"messages": said}, step)
    sizes = [len(entry.payload) for entry in store.entries(ThreadKey("default", "t"))]
    assert sorted(sizes)[len(sizes) // 2] < 1_500
    assert values_at(MilecastleSaver(store), place()) == {"messages": said}


def test_late_writers_do_not_bring_a_deleted_thread_back(store: Store) -> None:
    """With and without what they remember. Fails if a parent that is missing is ignored."""
    saver = MilecastleSaver(store)
    config = put(saver, place(), {"a": 1})
    MilecastleSaver(store).delete_thread("t")
    with pytest.raises(Conflict):
        saver.put_writes(config, [("a", 2)], "task")
    for writer in (saver, MilecastleSaver(store)):
        with pytest.raises(Conflict):
            put(writer, config, {"a": 2}, 1)
    assert saver.get_tuple(place()) is None
    assert store.head(ThreadKey("default", "t")) is None
    put(saver, place(), {"a": 3}, source="input")
    with pytest.raises(Conflict):
        put(saver, config, {"a": 2}, 1)
    assert values_at(saver, place()) == {"a": 3}


def test_nothing_late_creates_a_deleted_thread(store: Store) -> None:
    """By savers that remember it or not. Fails if early writes are stored without a checkpoint."""
    saver = MilecastleSaver(store)
    config = put(saver, place(), {"a": 1})
    MilecastleSaver(store).delete_thread("t")
    MilecastleSaver(store).put_writes(config, [("a", 2)], "task")
    with pytest.raises(Conflict):
        put(MilecastleSaver(store), config, {"a": 2}, 1, source="input")
    assert list(store.threads("default")) == []
    put(saver, place(), {"a": 3}, source="input")  # remembers the old one
    assert values_at(saver, place()) == {"a": 3}


def test_deleting_the_newest_run_leaves_the_one_before(store: Store) -> None:
    """Fails if the snapshot of what stays is emptied with what is deleted, or loses late writes."""
    saver = MilecastleSaver(store)
    first = put(saver, place(), {"a": [1]}, run_id="kept")
    second = put(saver, first, {"a": [1, 2]}, 1, run_id="kept")
    third = put(saver, second, {"a": [1, 2, 3]}, 2, run_id="gone")
    saver.put_writes(first, [("a", 4)], "late")
    saver.put_writes(third, [("a", 5)], "task")
    saver.delete_for_runs(["gone"])
    saver.put_writes(second, [("a", 6)], "task")
    fourth = put(saver, second, {"a": [1, 2, 7]}, 3, run_id="kept")
    reader = MilecastleSaver(store)
    found = [
        (one.config, one.checkpoint["channel_values"]["a"], one.pending_writes)
        for one in reader.list(place())
    ]
    assert found == [
        (fourth, [1, 2, 7], []),
        (second, [1, 2], [("task", "a", 6)]),
        (first, [1], [("late", "a", 4)]),
    ]
    for config, _, writes in found:
        one = reader.get_tuple(config)
        assert one is not None
        assert one.pending_writes == writes


@pytest.mark.parametrize("name", ["a'b", "a\nb", "../x", "\U0001f600", "a/b|c:d"])
def test_hostile_names_are_kept_apart(saver: MilecastleSaver, name: str) -> None:
    put(saver, place(name), {"a": 1})
    put(saver, place("t", name), {"a": 2})
    assert values_at(saver, place(name)) == {"a": 1}
    assert values_at(saver, place("t", name)) == {"a": 2}
    with pytest.raises(InvalidRequest):
        put(saver, place("a\x1fb"), {"a": 1})


def test_unknown_classes_are_decoded_only_if_allowed(store: Store) -> None:
    """Fails with the default of LangGraph, which calls any class that the bytes name."""
    put(MilecastleSaver(store), place(), {"a": Secret("x")})
    assert values_at(MilecastleSaver(store), place()) == {"a": {"word": "x"}}
    allowed = values_at(MilecastleSaver(store, allow=[Secret]), place())["a"]
    assert isinstance(allowed, Secret)


def test_threads_of_other_savers_can_be_copied_in(saver: MilecastleSaver, tmp_path: Path) -> None:
    """Checkpoints, parents, writes, namespaces; again without effect."""
    savers: Any = pytest.importorskip("langgraph.checkpoint.sqlite")
    connection = sqlite3.connect(tmp_path / "theirs.db", check_same_thread=False)
    theirs = savers.SqliteSaver(connection)
    run_loop(theirs)
    assert saver.copy_from(theirs) == len(list(theirs.list(None)))
    assert saver.copy_from(theirs, "loop") == 0
    for one in theirs.list(None):
        found = saver.get_tuple(one.config)
        assert found is not None
        assert found.checkpoint["channel_values"] == one.checkpoint["channel_values"]
        assert found.metadata == one.metadata
        assert found.parent_config == one.parent_config
        assert sorted(map(str, found.pending_writes or ())) == sorted(
            map(str, one.pending_writes or ())
        )
    connection.close()
    assert run_loop(saver)["items"] == list(range(7))


def test_filter_tells_types_apart(saver: MilecastleSaver) -> None:
    """Fails if a number equals a truth value, as in Python, or if 1 is not 1.0."""
    put(saver, place("number"), {"a": 1}, n=1, deep={"x": [1, 2]})
    put(saver, place("truth"), {"a": 1}, n=True, deep={"x": [2]})
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"n": 1}, ["number"]),
        ({"n": True}, ["truth"]),
        ({"deep": {"x": [1]}}, ["number"]),
        ({"deep": {}}, ["truth", "number"]),
        ({"deep": {"y": None}}, []),
        ({"n": 1.0}, ["number"]),
    ]
    for wanted, threads in cases:
        found = saver.list(None, filter=wanted)
        assert [one.config.get("configurable", {})["thread_id"] for one in found] == threads


class Items(TypedDict):
    items: Annotated[list[int], operator.add]


def run_loop(saver: Any) -> Any:
    """A graph that appends until there are six, then one more for each input."""
    graphs: Any = pytest.importorskip("langgraph.graph")

    def add(state: Items) -> Items:
        return {"items": [len(state["items"])]}

    def route(state: Items) -> Any:
        return "add" if len(state["items"]) < 6 else graphs.END

    graph = graphs.StateGraph(Items)
    graph.add_node("add", add)
    graph.add_edge(graphs.START, "add")
    graph.add_conditional_edges("add", route, ["add", graphs.END])
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "loop"}}
    return app.invoke({"items": []}, config)


def test_failed_run_is_shown_as_failed(saver: MilecastleSaver, store: Store) -> None:
    config = put(saver, place(), {"branch:to:work": None})
    info = store.thread(ThreadKey("default", "t"))
    assert info is not None
    assert info.status == "running"
    saver.put_writes(config, [(ERROR, ValueError("secret"))], "task")
    info = store.thread(ThreadKey("default", "t"))
    assert info is not None
    assert info.status == "failed"
    failure = store.failure(info.key, info.run_id)
    assert failure is not None
    assert "secret" not in str(failure)


def test_deleting_runs_leaves_the_others_whole(saver: MilecastleSaver, store: Store) -> None:
    """Also the bytes go. Fails if a state after a deleted one is not stored whole."""
    config = place()
    kept: list[tuple[Any, list[int]]] = []
    items: list[int] = []
    for step in range(40):
        run = "gone" if step % 4 in (1, 2) else "kept"
        items = [*items, step]
        word = "SECRET" if run == "gone" else "fine"
        config = put(saver, config, {"items": items, "word": f"{word}-{step}"}, step, run_id=run)
        saver.put_writes(config, [("items", [step])], f"task-{step}")
        if run == "kept":
            kept.append((config, items))
    saver.delete_for_runs(["gone"])
    for reader in (saver, MilecastleSaver(store)):
        found = list(reader.list(place()))
        assert [one.config for one in found] == [config for config, _ in reversed(kept)]
        for config, items in kept:
            one = reader.get_tuple(config)
            assert one is not None
            assert one.checkpoint["channel_values"]["items"] == items
            assert len(one.pending_writes or ()) == 1
    entries = store.entries(ThreadKey("default", "t"))
    assert not any(b"SECRET" in entry.payload for entry in entries)
    put(saver, kept[-1][0], {"items": [1]}, 41, run_id="kept")


@pytest.mark.parametrize("gone", range(7))
def test_any_one_checkpoint_can_be_deleted(gone: int, saver: MilecastleSaver, store: Store) -> None:
    """With a rollup after every second entry. Fails if the next rollup is not stored whole."""
    setattr(saver, "_rollup_after", 2)  # noqa: B010 - a rollup comes late otherwise
    config, items = place(), list[int]()
    kept: list[tuple[Any, list[int]]] = []
    for step in range(8):
        items = [*items, step]
        run = "gone" if step == gone else "kept"
        config = put(saver, config, {"items": items}, step, run_id=run)
        kept += [] if step == gone else [(config, items)]
    saver.delete_for_runs(["gone"])
    reader = MilecastleSaver(store)
    assert [values_at(reader, config)["items"] for config, _ in kept] == [one for _, one in kept]
    found = [one.checkpoint["channel_values"]["items"] for one in reader.list(place())]
    assert found == [one for _, one in reversed(kept)]


@pytest.mark.parametrize("by_gc", [False, True])
def test_pruning_keeps_what_delta_channels_are_rebuilt_from(
    saver: MilecastleSaver, store: Store, by_gc: bool
) -> None:
    """Fails if the ancestors of a delta channel are dropped with the others."""
    counters = {"counters_since_delta_snapshot": {"log": [1, 1]}}
    config, steps = place(), 100
    for step in range(steps):
        values: dict[str, Any] = {"n": step} | ({"log": ["seed"]} if step == 20 else {})
        versions: Any = {"n": step + 1, "log": step + 1}
        checkpoint: Any = {
            **empty_checkpoint(),
            "id": str(uuid6(clock_seq=step)),
            "channel_values": values,
            "channel_versions": versions,
        }
        said: Any = {"source": "loop", "step": step, **counters}
        config = saver.put(config, checkpoint, said, versions)
        saver.put_writes(config, [("log", step)], f"task-{step}")
    before = saver.get_delta_channel_history(config=config, channels=["log"])
    assert before["log"].get("seed") == ["seed"]
    assert [value for _, _, value in before["log"]["writes"]] == [*range(20, steps - 1)]
    if by_gc:
        prune_thread(store, LogCodec(UntypedCodec()), key_of("default", "t"), keep_last=1)
    else:
        saver.prune(["t"])
    reader = MilecastleSaver(store)
    assert reader.get_delta_channel_history(config=config, channels=["log"]) == before
    left = [one.metadata.get("step", -9) for one in reader.list(place())]
    if not by_gc or store.rollup_after is not None:
        assert left == [*range(20, steps)][::-1]


def test_sync_and_async_methods_agree(saver: MilecastleSaver) -> None:
    async def run(config: Any) -> list[Any]:
        await saver.aput_writes(config, [("x", 1)], "task")
        await saver.acopy_thread("t", "copy")
        found = [one async for one in saver.alist(place("copy"))]
        assert await saver.aget_tuple(place("copy")) == found[0]
        await saver.aprune(["copy"])
        await saver.adelete_for_runs(["nobody"])
        await saver.adelete_thread("t")
        return found

    config = put(saver, place(), {"a": 1})
    second = put(saver, config, {"a": 2}, 1)
    found = asyncio.run(run(second))
    assert [one.checkpoint["channel_values"] for one in found] == [{"a": 2}, {"a": 1}]
    assert saver.get_tuple(place()) is None
    assert values_at(saver, place("copy")) == {"a": 2}
    assert saver.get(place("copy")) == found[0].checkpoint


class Meanwhile(MemoryStore):
    """Calls a function before or after the next commit."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def commit(self, batch: Batch) -> None:
        before, after, self.before, self.after = self.before, self.after, None, None
        if before is not None:
            before()
        super().commit(batch)
        if after is not None:
            after()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_writes_that_come_with_their_checkpoint_are_stored(moment: str) -> None:
    """On another event loop, whose turns are its own. Fails if what came meanwhile is dropped."""
    store = Meanwhile()
    saver = MilecastleSaver(store)
    first = put(saver, place(), {"a": 1})
    checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6(clock_seq=1))}
    config = place(checkpoint=checkpoint["id"])

    def write() -> None:
        asyncio.run(saver.aput_writes(config, [("x", 2)], "second"))

    saver.put_writes(config, [("x", 1)], "first")
    setattr(store, moment, write)
    saver.put(first, checkpoint, {"source": "loop", "step": 1}, {})
    expected = [("first", "x", 1), ("second", "x", 2)]
    for reader in (saver, MilecastleSaver(store)):
        found = reader.get_tuple(place())
        assert found is not None
        assert found.pending_writes == expected


def test_long_namespaces_are_names_too(saver: MilecastleSaver) -> None:
    """Of graphs nested deeply. Fails if a namespace is part of the name of its log as it is."""
    deep = "|".join(f"node_with_a_name:{number:036}" for number in range(30))
    config = place("t", deep)
    for step in range(3):
        config = put(saver, config, {"a": step}, step)
        saver.put_writes(config, [("a", step)], "task")
    put(saver, place("t", deep + "|x:1"), {"a": "other"})
    put(saver, place("t"), {"a": "root"})
    assert values_at(saver, place("t", deep)) == {"a": 2}
    listed = [
        one.config.get("configurable", {})["checkpoint_ns"] for one in saver.list(place_of("t"))
    ]
    assert sorted(listed) == sorted([deep] * 3 + [deep + "|x:1", ""])
    newest, second, _ = saver.list(place("t", deep))
    assert newest.config == config
    assert newest.parent_config == second.config
    saver.copy_thread("t", "copy")
    assert values_at(saver, place("copy", deep)) == {"a": 2}
    other = MilecastleSaver("memory://")
    assert other.copy_from(saver, "t") == 5
    assert values_at(other, place("t", deep)) == {"a": 2}
    saver.delete_thread("t")
    assert saver.get_tuple(place("t", deep)) is None


def place_of(thread: str) -> Any:
    """All namespaces of a thread."""
    return {"configurable": {"thread_id": thread}}


def test_empty_checkpoint_id_means_the_newest(saver: MilecastleSaver) -> None:
    """As on LangGraph's savers. Fails if it is looked for, or if it is a parent."""
    empty: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": ""}}
    config = put(saver, empty, {"a": 1})
    found = saver.get_tuple(empty)
    assert found is not None
    assert (found.config, found.parent_config) == (config, None)
    assert len(list(saver.list(empty, before=empty))) == 1


def test_unknown_parent_is_named_in_the_error(saver: MilecastleSaver) -> None:
    """Fails if the error speaks of a head that has not changed."""
    put(saver, place(), {"a": 1})
    with pytest.raises(Conflict, match="does not have the checkpoint"):
        put(saver, place(checkpoint=str(uuid6())), {"a": 2}, 1)


@pytest.mark.parametrize(
    "odd", [{"step": None}, {"step": "x"}, {"step": 2**63}, {"source": [1]}, {"source": None}]
)
def test_odd_metadata_is_stored_as_it_is(saver: MilecastleSaver, odd: dict[str, Any]) -> None:
    """Fails if what lists show of it is required to be a number or a name."""
    said: Any = {"source": "loop", "step": 1, **odd}
    checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6())}
    saver.put(place(), checkpoint, said, {})
    found = saver.get_tuple(place())
    assert found is not None
    assert found.metadata == said


def test_delta_history_is_that_of_the_ancestors(saver: MilecastleSaver, store: Store) -> None:
    """With forks and late writes. Fails if the walk takes what is on another branch."""
    walked: Any = BaseCheckpointSaver[Any].get_delta_channel_history
    configs = [place()]
    for step in range(60):
        parent = configs[-1] if step % 7 else configs[len(configs) // 2]
        checkpoint: Any = {
            **empty_checkpoint(),
            "id": str(uuid6(clock_seq=step)),
            "channel_values": {"n": step} | ({"log": [step]} if step % 20 == 5 else {}),
            "channel_versions": {"n": step + 1, "log": step + 1},
        }
        said: Any = {"source": "loop", "step": step}
        configs.append(saver.put(parent, checkpoint, said, checkpoint["channel_versions"]))
        saver.put_writes(configs[-1], [("log", step), ("n", step)], f"task-{step}")
        saver.put_writes(configs[1 + step // 2], [("log", -step)], f"late-{step}")
    channels = ["log", "n", "none"]
    reader = MilecastleSaver(store)
    for config in (*configs, place("nobody")):
        expected = walked(saver, config=config, channels=channels)
        assert reader.get_delta_channel_history(config=config, channels=channels) == expected
    found = asyncio.run(reader.aget_delta_channel_history(config=place(), channels=channels))
    assert found == walked(saver, config=place(), channels=channels)


class Counting(MemoryStore):
    """Counts the chains that are read."""

    reads = 0

    def read(self, key: ThreadKey, seq: int | None = None) -> Any:
        self.reads += 1
        return super().read(key, seq)


def test_delta_history_is_read_in_pages() -> None:
    """Fails if each ancestor is read by itself: rebuilding a channel took seconds."""
    store = Counting()
    saver = MilecastleSaver(store)
    config = place()
    for step in range(150):
        config = put(saver, config, {"n": step}, step)
        saver.put_writes(config, [("log", step)], "task")
    store.reads = 0
    found = saver.get_delta_channel_history(config=config, channels=["log"])
    assert [value for _, _, value in found["log"]["writes"]] == list(range(149))
    assert store.reads < 10


def test_no_thread_id_is_not_the_thread_none(saver: MilecastleSaver) -> None:
    """Failed: ``thread_id=None``, as of a missing variable, was the thread "None" of everybody."""
    nowhere: Any = {"configurable": {"thread_id": None}}
    uses: list[Callable[[], object]] = [
        lambda: put(saver, nowhere, {"number": 1}),
        lambda: saver.get_tuple(nowhere),
        lambda: list(saver.list(nowhere)),
        lambda: saver.delete_thread(nowhere["configurable"]["thread_id"]),
    ]
    for use in uses:
        with pytest.raises(InvalidRequest, match="names no thread"):
            use()


@pytest.mark.parametrize("name", ["agent", "other"])
def test_graph_refuses_a_thread_of_langgraph(
    saver: MilecastleSaver, store: Store, name: str
) -> None:
    """One input with ``discard`` took the thread, and LangGraph read an empty state of it."""
    before = put(saver, place("lg"), {"number": 1}, graph_id="agent")
    saver.put_writes(before, [(INTERRUPT, "ok?")], "task", "~__pregel_pull, work")
    graph = StateGraph(Count, name=name)
    graph.add_node("work", lambda state: {})
    graph.add_edges(START, "work", END)
    app = graph.compile(store=store)
    uses: list[Callable[[], object]] = [
        lambda: app.invoke({"number": 2}, "lg", discard=True),
        lambda: app.invoke({"number": 2}, "lg", discard=True, take_over=True),
        lambda: app.resume("lg", accept_changes=True, take_over=True),
        lambda: app.update_state("lg", {"number": 3}),
        lambda: app.fork("lg", 1),
        lambda: app.cancel("lg"),
        lambda: app.delete("lg", take_over=True),
    ]
    for use in uses:
        with pytest.raises((InvalidRequest, ResumeRefused)):
            use()
    assert values_at(saver, before) == {"number": 1}


def test_thread_of_ours_is_refused(saver: MilecastleSaver, store: Store) -> None:
    """Fails if LangGraph's checkpoints are appended to it: it could not be resumed any more.

    It was read as an empty one, pruned and deleted.
    """

    def work(state: Count) -> Count:
        return {"number": state["number"] + 1}

    graph = StateGraph(Count)
    graph.add_node("work", work)
    graph.add_edges(START, "work", END)
    app = graph.compile(store=store)
    app.invoke({"number": 1}, thread="t")
    assert list(saver.list(None)) == []
    uses: list[Callable[[], object]] = [
        lambda: saver.get_tuple(place()),
        lambda: saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_id": "x"}}),
        lambda: list(saver.list(place())),
        lambda: saver.delete_thread("t"),
        lambda: saver.prune(["t"]),
        lambda: saver.copy_thread("t", "u"),
    ]
    for use in uses:
        with pytest.raises(InvalidRequest, match="not one of LangGraph"):
            use()
    with pytest.raises(InvalidRequest, match="not one of LangGraph"):
        put(saver, place(), {"a": 1})
    assert app.state("t").seq == 2


class Count(TypedDict):
    number: int


def test_copy_stores_writes_with_their_checkpoint(saver: MilecastleSaver, store: Store) -> None:
    """Fails if an interrupted copy may lose them: what is here is not copied again."""
    theirs = InMemorySaver()
    config = put(theirs, place(), {"branch:to:work": None})
    theirs.put_writes(config, [(INTERRUPT, "sure?")], "asks")
    theirs.put_writes(config, [("x", 1)], "ends")
    put(theirs, config, {"a": 2}, 1)
    saver.copy_from(theirs)
    assert [entry.note for entry in store.entries(ThreadKey("default", "t"))] == ["", ""]
    for one in theirs.list(place()):
        found = saver.get_tuple(one.config)
        assert found is not None
        assert found.pending_writes == one.pending_writes


def test_copied_writes_keep_their_positions(saver: MilecastleSaver) -> None:
    """LangGraph saves those of a caller again. Fails if one is then there twice."""
    theirs = InMemorySaver()
    caller = "00000000-0000-0000-0000-000000000000"
    config = put(theirs, place(), {"a": 1})
    theirs.put_writes(config, [("x", 1), (RESUME, "first")], caller)
    saver.copy_from(theirs)
    saver.put_writes(config, [("x", 1), ("y", 2), (RESUME, "second")], caller)
    found = saver.get_tuple(config)
    assert found is not None
    assert [channel for _, channel, _ in found.pending_writes or ()] == [RESUME, "x", "y"]


def test_object_of_langchain_in_json_is_not_constructed() -> None:
    """Failed: the form ``json``, which nobody writes, made any class that LangChain can load."""
    body = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "prompts", "prompt", "PromptTemplate"],
        "kwargs": {"template": "{x}", "input_variables": ["x"]},
    }
    packed = json.dumps(body).encode()
    assert StrictSerializer().loads_typed(("json", packed)) == body


def test_one_checkpoint_is_listed_in_each_namespace_that_has_it(saver: MilecastleSaver) -> None:
    """Fails if a checkpoint of another namespace is listed, or one after ``before``."""
    first = put(saver, place(), {"a": 1})
    second = put(saver, first, {"a": 2}, 1)
    inner = put(saver, place(namespace="inner"), {"a": 3}, 2)
    ids = [one["configurable"]["checkpoint_id"] for one in (first, second, inner)]

    def listed(id: str, **given: Any) -> list[Any]:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_id": id}}
        return [one.checkpoint["channel_values"]["a"] for one in saver.list(config, **given)]

    assert [listed(id) for id in ids] == [[1], [2], [3]]
    assert listed(ids[0], before=second) == [1]
    assert listed(ids[1], before=second) == []
    assert listed("none") == []


def test_calls_that_cannot_be_done_are_refused(saver: MilecastleSaver) -> None:
    """Fails if writes without a checkpoint are lost, or a copy is mixed with what is there."""
    put(saver, place(), {"a": 1})
    put(saver, place("other"), {"a": 2})
    with pytest.raises(InvalidRequest, match="writes belong to a checkpoint"):
        saver.put_writes(place(), [("a", 2)], "task")
    with pytest.raises(InvalidRequest, match="'keep_latest' or 'delete'"):
        saver.prune(["t"], strategy="keep_some")
    with pytest.raises(InvalidRequest, match="thread 'other' exists: copy to a new one"):
        saver.copy_thread("t", "other")
    assert values_at(saver, place("other")) == {"a": 2}


def test_store_that_was_given_is_not_closed_with_the_saver(tmp_path: Path) -> None:
    """Fails if the saver closes a store that others use, or leaves its own open."""
    with closing(SqliteStore(tmp_path / "given.db")) as given:
        MilecastleSaver(given).close()
        assert given.thread(ThreadKey("default", "t")) is None
    own = MilecastleSaver(f"sqlite:///{tmp_path}/own.db")
    own.close()
    with pytest.raises(Unavailable, match="closed"):
        own.get_tuple(place())


def test_conflicts_without_end_are_raised(
    saver: MilecastleSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a call returns as if it had stored something, or repeats forever."""
    tried: list[Batch] = []

    def refuse(batch: Batch) -> None:
        tried.append(batch)
        raise Conflict(tenant="default", thread="t", expected=1, head=2)

    monkeypatch.setattr("milecastle.integrations.langgraph.saver._ATTEMPTS", 3)
    monkeypatch.setattr(vars(saver)["_store"], "commit", refuse)
    with pytest.raises(Conflict):
        put(saver, place(), {"a": 1})
    assert len(tried) == 3


def test_what_is_remembered_of_threads_is_bounded(
    saver: MilecastleSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if memory grows with the number of threads, or a thread needs what was known of it."""
    for name in ("_MOST", "_MOST_EARLY"):
        monkeypatch.setattr(f"milecastle.integrations.langgraph.performing.{name}", 2)
    for name in "abcd":
        saver.put_writes(place(name, checkpoint="early"), [("x", 1)], "task")
        put(saver, place(name), {"a": name})
    performer: Any = vars(saver)["_performer"]
    known: dict[str, Any] = {**vars(performer)}
    assert len(known["_slots"]) == len(known["_early"]) == 2
    assert [values_at(saver, place(name)) for name in "abcd"] == [{"a": name} for name in "abcd"]
