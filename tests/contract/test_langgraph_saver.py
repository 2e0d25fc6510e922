"""The LangGraph saver: LangGraph's own conformance suite, and what that does not ask."""

from __future__ import annotations

import asyncio
import operator
import sqlite3
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.base")

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from milecastle.errors import Conflict, InvalidRequest
from milecastle.integrations.langgraph import MilecastleSaver
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
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


def place(thread: str = "t", namespace: str = "", checkpoint: str | None = None) -> Any:
    given = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": given | ({"checkpoint_id": checkpoint} if checkpoint else {})}


def put(saver: Any, config: Any, values: dict[str, Any], step: int = 0, **metadata: Any) -> Any:
    """Put a checkpoint in which every value is new; return its configuration."""
    versions = dict.fromkeys(values, step + 1)
    checkpoint = {
        **empty_checkpoint(),
        "id": str(uuid6(clock_seq=step)),
        "channel_values": values,
        "channel_versions": versions,
    }
    said: dict[str, Any] = {"source": "loop", "step": step, "parents": {}, **metadata}
    return saver.put(config, checkpoint, said, versions)


def values_at(saver: Any, config: Any) -> Any:
    return saver.get_tuple(config).checkpoint["channel_values"]


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


def test_growing_list_is_stored_as_what_was_appended(saver: MilecastleSaver, store: Store) -> None:
    """Fails if a list is written again. Not yet broken on purpose."""
    config = place()
    items: list[str] = []
    for step in range(300):
        items = [*items, f"{step:0100}"]
        config = put(saver, config, {"items": items}, step)
    written = sum(len(entry.payload) for entry in store.entries(ThreadKey("default", "t")))
    assert written < 300 * 1_000 + 2 * 300 * 100
    assert values_at(MilecastleSaver(store), place()) == {"items": items}


def test_lists_of_objects_grow_by_what_was_appended(saver: MilecastleSaver, store: Store) -> None:
    messages: Any = pytest.importorskip("langchain_core.messages")
    config = place()
    said: list[Any] = []
    for step in range(50):
        said = [*said, messages.HumanMessage(f"m{step}", id=str(step))]
        config = put(saver, config, {"messages": said}, step)
    sizes = [len(entry.payload) for entry in store.entries(ThreadKey("default", "t"))]
    assert sorted(sizes)[len(sizes) // 2] < 1_500
    assert values_at(MilecastleSaver(store), place()) == {"messages": said}


def test_message_that_was_changed_in_place_is_stored_as_it_is(
    saver: MilecastleSaver, store: Store
) -> None:
    """Fails if an encoding is found by the message instead of by what the message contains."""
    messages: Any = pytest.importorskip("langchain_core.messages")
    said: list[Any] = [messages.HumanMessage("a", id="1"), messages.AIMessage("b", id="2")]
    config = put(saver, place(), {"messages": said})
    said[0].content = "c"
    said[1].additional_kwargs["n"] = 1
    config = put(saver, config, {"messages": said}, 1)
    said[1].additional_kwargs["n"] = True
    put(saver, config, {"messages": said}, 2)
    first, second = values_at(MilecastleSaver(store), place())["messages"]
    assert first.content == "c"
    assert second.additional_kwargs["n"] is True
    assert values_at(saver, config)["messages"][1].additional_kwargs["n"] is not True


def test_lists_that_shrink_or_change_are_read_back(saver: MilecastleSaver, store: Store) -> None:
    config = place()
    seen: list[tuple[Any, Any]] = []
    for step, items in enumerate([[], [1], [1, 2], [2], [2, {"a": [3]}], None, [b"x"], "text", []]):
        config = put(saver, config, {"items": items}, step)
        seen.append((config, items))
    for config, items in seen:
        assert values_at(MilecastleSaver(store), config) == {"items": items}


def test_every_checkpoint_of_a_long_thread_is_listed_as_it_was(saver: MilecastleSaver) -> None:
    """Over several pages and rollups. Fails if a rollup is applied to the state before it."""
    config = place()
    items: list[int] = []
    for step in range(450):
        items = [*items, step]
        config = put(saver, config, {"items": items, "n": step}, step)
        if step % 3 == 0:
            saver.put_writes(config, [("n", step)], f"task-{step}")
    found = list(saver.list(place()))
    assert [one.metadata.get("step", -9) for one in found] == list(reversed(range(450)))
    for one in found:
        step = one.metadata.get("step", -9)
        assert one.checkpoint["channel_values"] == {"items": list(range(step + 1)), "n": step}
        assert one.pending_writes == ([(f"task-{step}", "n", step)] if step % 3 == 0 else [])
    middle = found[200].config
    assert [one.config for one in saver.list(place(), before=middle, limit=3)] == [
        one.config for one in found[201:204]
    ]


def test_writes_have_the_order_of_their_tasks(saver: MilecastleSaver) -> None:
    """By path, task and position. Fails if they come in the order of arrival."""
    config = put(saver, place(), {"a": 1})
    saver.put_writes(config, [("x", 1), ("y", 2)], "task-a", "~2")
    saver.put_writes(config, [("x", 3)], "task-c", "~1")
    saver.put_writes(config, [("x", 4)], "task-b", "~1")
    found = saver.get_tuple(place())
    assert found is not None
    assert found.pending_writes == [
        ("task-b", "x", 4),
        ("task-c", "x", 3),
        ("task-a", "x", 1),
        ("task-a", "y", 2),
    ]


def test_special_writes_are_replaced_and_others_are_not(saver: MilecastleSaver) -> None:
    config = put(saver, place(), {"a": 1})
    saver.put_writes(config, [("x", 1)], "task")
    saver.put_writes(config, [("x", 2)], "task")
    saver.put_writes(config, [(INTERRUPT, "first")], "task")
    saver.put_writes(config, [(INTERRUPT, "second")], "task")
    saver.put_writes(config, [(INTERRUPT, "third"), ("x", 3)], "task")
    found = saver.get_tuple(place())
    assert found is not None
    assert found.pending_writes == [
        ("task", INTERRUPT, "second"),
        ("task", "x", 1),
        ("task", "x", 3),
    ]


def test_writes_that_come_before_their_checkpoint_are_found(saver: MilecastleSaver) -> None:
    """Fails if early writes are not stored with the checkpoint."""
    first = put(saver, place(), {"a": 1})
    checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6(clock_seq=1))}
    early = place(checkpoint=checkpoint["id"])
    saver.put_writes(early, [("x", 1)], "task")
    assert values_at(saver, place()) == {"a": 1}
    saver.put(first, checkpoint, {"source": "loop", "step": 1}, {})
    found = saver.get_tuple(place())
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]


def test_writes_that_come_after_the_next_checkpoint_are_found(saver: MilecastleSaver) -> None:
    """By id, in the list, and below a limit. Fails if ``__late__`` is not read."""
    first = put(saver, place(), {"a": 1})
    saver.put_writes(first, [("x", 1)], "task-1")
    second = put(saver, first, {"a": 2}, 1)
    saver.put_writes(first, [("x", 2)], "task-2")
    third = put(saver, second, {"a": 3}, 2)
    saver.put_writes(first, [("x", 3)], "task-3")
    expected = [("task-1", "x", 1), ("task-2", "x", 2), ("task-3", "x", 3)]
    by_id = saver.get_tuple(first)
    assert by_id is not None
    assert by_id.pending_writes == expected
    assert [one.pending_writes for one in saver.list(place())] == [[], [], expected]
    assert [one.pending_writes for one in saver.list(place(), before=third)] == [[], expected]
    newest = saver.get_tuple(place())
    assert newest is not None
    assert (newest.config, newest.pending_writes) == (third, [])


def test_two_writers_on_one_thread_lose_nothing(store: Store) -> None:
    """Two savers, as two processes have. Fails if one overwrites what it did not read."""
    savers = [MilecastleSaver(store), MilecastleSaver(store)]
    root = put(savers[0], place(), {"who": "root"})
    gate = threading.Barrier(2)
    stored: list[Any] = []

    def write(saver: MilecastleSaver, name: str) -> None:
        config = root
        gate.wait(60)
        for step in range(1, 16):
            config = put(saver, config, {"who": f"{name}-{step}"}, step, run_id=name)
            saver.put_writes(config, [("who", step)], name)
            stored.append((config, f"{name}-{step}"))

    threads = [
        threading.Thread(target=write, args=(saver, name))
        for saver, name in zip(savers, "ab", strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(stored) == 30
    reader = MilecastleSaver(store)
    for config, value in stored:
        found = reader.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"who": value}
        assert len(found.pending_writes or ()) == 1
    assert len(list(reader.list(place()))) == 31


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


@pytest.mark.parametrize(
    "key", ["') OR 1=1 --", "a.b", 'a"b', "$.x", "%s", "", "\u2028", "source') = 'x' OR ('1"]
)
def test_hostile_metadata_keys_are_only_text(saver: MilecastleSaver, key: str) -> None:
    """Fails if a key of a filter is ever part of a statement."""
    hostile: dict[str, Any] = {key: "wanted"}
    put(saver, place("a"), {"a": 1}, **hostile)
    put(saver, place("b"), {"a": 1})
    found = list(saver.list(None, filter={key: "wanted"}))
    assert [one.config.get("configurable", {})["thread_id"] for one in found] == ["a"]
    assert list(saver.list(None, filter={key: "other"})) == []


@pytest.mark.parametrize("name", ["a'b", "a\nb", "../x", "\U0001f600", "a/b|c:d"])
def test_hostile_names_are_kept_apart(saver: MilecastleSaver, name: str) -> None:
    put(saver, place(name), {"a": 1})
    put(saver, place("t", name), {"a": 2})
    assert values_at(saver, place(name)) == {"a": 1}
    assert values_at(saver, place("t", name)) == {"a": 2}
    with pytest.raises(InvalidRequest):
        put(saver, place("a\x1fb"), {"a": 1})


class Secret:
    """A class that LangGraph does not know."""

    def __init__(self, word: str) -> None:
        self.word = word

    def model_dump(self) -> dict[str, str]:
        return {"word": self.word}


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


def test_forks_keep_both_branches(saver: MilecastleSaver) -> None:
    root = put(saver, place(), {"items": [1], "x": "root"})
    one = put(saver, root, {"items": [1, 2], "x": "one"}, 1)
    two = put(saver, root, {"items": [1, 3], "x": "two"}, 1)
    three = put(saver, one, {"items": [1, 2, 4], "x": "three"}, 2)
    expected = {"root": [1], "one": [1, 2], "two": [1, 3], "three": [1, 2, 4]}
    for config, name in ((root, "root"), (one, "one"), (two, "two"), (three, "three")):
        assert values_at(saver, config) == {"items": expected[name], "x": name}
    parents = [found.parent_config for found in saver.list(place())]
    assert parents == [one, root, root, None]


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


def test_pruning_keeps_what_delta_channels_are_rebuilt_from(saver: MilecastleSaver) -> None:
    """Fails if the ancestors of a delta channel are dropped with the others."""
    counters = {"counters_since_delta_snapshot": {"log": [1, 1]}}
    config = place()
    for step in range(6):
        values: dict[str, Any] = {"n": step} | ({"log": ["seed"]} if step == 2 else {})
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
    assert [value for _, _, value in before["log"]["writes"]] == [2, 3, 4]
    saver.prune(["t"])
    assert saver.get_delta_channel_history(config=config, channels=["log"]) == before
    assert [one.metadata.get("step", -9) for one in saver.list(place())] == [5, 4, 3, 2]


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
