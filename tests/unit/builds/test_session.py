"""A file run at work: what only the run itself can know, and what it leaves behind."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec.structs
import pytest

from milecastle import END, START, App, ExecutionError, StateGraph, append
from milecastle.builds import Cache, FileRun, Workspace, files, root
from milecastle.errors import Corrupted, FileRefused, InvalidUpdate
from tests.unit.builds.building import Job, lay_out, two_step_app


class Log(TypedDict, total=False):
    told: Annotated[list[str], append]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(lay_out(tmp_path / "project") / ".ws")


def beside(told: str) -> App[Log]:
    """Two branches: `reader`, in the second layer, sees what `other`, in the first, told."""
    graph = StateGraph(Log, name="beside")

    def reader(state: Log) -> dict[str, list[str]]:
        told = state.get("told", [])
        return {"told": [f"saw {len(told)} {told[-1]}"]}

    graph.add_node("first", files(version="1")(lambda: {"told": ["first"]}))
    graph.add_node("other", files(version=told)(lambda: {"told": [told]}))
    graph.add_node("reader", files(version="1")(reader))
    graph.add_node("last", files(version="1")(lambda: None))
    graph.add_edges(START, "first", "reader", "last", END)
    graph.add_edges(START, "other", END)
    return graph.compile()


def test_a_node_whose_state_is_another_after_all_is_run(workspace: Workspace) -> None:
    FileRun(beside("one"), workspace).run()
    run = FileRun(beside("two"), workspace)
    assert run.plan().executed == ("other",)  # the plan cannot know what reader will see
    result = run.run()
    assert list(result.executed) == ["other", "reader", "last"]
    assert [str(why) for why in result.executed["reader"]] == ["the state that it reads changed"]
    assert [str(why) for why in result.executed["last"]] == [
        "upstream node 'reader' was executed after all"
    ]
    assert result.state["told"] == ["first", "two", "saw 2 two"]
    again = FileRun(beside("two"), workspace).run()
    assert (again.executed, again.state) == ({}, result.state)


def test_only_what_the_key_says_counts(workspace: Workspace) -> None:
    calls: list[int] = []

    def node(state: Job) -> dict[str, str]:
        calls.append(state.get("n", 0))
        return {"told": "x"}

    def count(state: Job) -> dict[str, int]:
        return {"n": len(calls) + len(state)}

    def app() -> App[Job]:
        graph = StateGraph(Job, name="key")
        cache = Cache(key=lambda state: state.get("told"), ttl=3600)
        graph.add_node("set", count)
        graph.add_node("node", files(cache=cache, version="1")(node))
        graph.add_edges(START, "node", END)
        graph.add_edges(START, "set", END)
        return graph.compile()

    FileRun(app(), workspace).run(input={"told": "a"})
    assert FileRun(app(), workspace).run(input={"told": "a"}).reused == ("node",)
    assert calls == [0]


def test_a_result_expires(workspace: Workspace) -> None:
    graph = StateGraph(Job, name="old")
    graph.add_node("node", files(cache=Cache(ttl=0.001), version="1")(lambda: {"n": 1}))
    graph.add_edges(START, "node", END)
    run = FileRun(graph.compile(), workspace)
    run.run()
    assert [str(why) for why in run.plan().decisions["node"].reasons] == ["its result has expired"]


def test_an_update_is_reused_with_its_types(workspace: Workspace) -> None:
    class State(TypedDict, total=False):
        value: Any

    graph = StateGraph(State, name="types")
    value = {"t": (1, 2), "s": {3}, "b": b"x", "f": 1.5}
    graph.add_node("node", files(version="1")(lambda: {"value": value}))
    graph.add_edges(START, "node", END)
    run = FileRun(graph.compile(), workspace)
    assert run.run().state == run.run().state == {"value": value}
    assert run.run().reused == ("node",)


def test_a_state_that_is_a_dataclass_is_reused(workspace: Workspace) -> None:
    @dataclasses.dataclass
    class Point:
        x: int = 0
        y: int = 0

    def node(state: Point) -> Point:
        return dataclasses.replace(state, x=state.x + 1)

    graph = StateGraph(Point, name="point")
    graph.add_node("node", files(version="1")(node))
    graph.add_edges(START, "node", END)
    run = FileRun(graph.compile(), workspace)
    assert run.run(input={"y": 5}).state == run.run(input={"y": 5}).state == Point(1, 5)
    assert run.run(input={"y": 5}).reused == ("node",)


def test_what_is_not_an_update_is_refused(workspace: Workspace) -> None:
    graph = StateGraph(Job, name="odd")
    graph.add_node("node", files(version="1")(lambda: 7))
    graph.add_edges(START, "node", END)
    with pytest.raises((ExecutionError, InvalidUpdate)) as caught:
        FileRun(graph.compile(), workspace).run()
    told = f"{caught.value} {getattr(caught.value, 'cause', '')}"
    assert "it must return an update (a dict) or None" in told


def test_an_input_that_is_not_there_is_named(workspace: Workspace) -> None:
    (workspace.root / "in.txt").unlink()
    with pytest.raises(ExecutionError) as caught:
        FileRun(two_step_app(), workspace).run()
    assert isinstance(caught.value.cause, FileRefused)
    assert "declares the input 'in.txt', which does not exist" in str(caught.value.cause)


def test_a_folder_with_a_link_out_of_it_cannot_be_an_input(workspace: Workspace) -> None:
    (workspace.root / "in.txt").unlink()
    (workspace.root / "in.txt").mkdir()
    (workspace.root / "in.txt" / "link").symlink_to("/etc/hostname")
    with pytest.raises(ExecutionError) as caught:
        FileRun(two_step_app(), workspace).run()
    assert "cannot be read" in str(caught.value.cause)


def test_an_old_output_does_not_pass_for_a_new_one(workspace: Workspace) -> None:
    (workspace.root / "mid.txt").write_text("old")
    with pytest.raises(ExecutionError) as caught:
        FileRun(two_step_app(lambda: None), workspace).run()
    assert "did not create it" in str(caught.value.cause)


def test_a_cache_that_loses_an_entry_during_the_run_ends_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileRun(two_step_app(), workspace).run()
    (workspace.root / "mid.txt").unlink()
    run = FileRun(two_step_app(), workspace)
    load = workspace.cache.load
    calls: list[str] = []

    def lose(task_hash: str) -> Any:
        calls.append(task_hash)
        return load(task_hash) if len(calls) == 1 else None

    monkeypatch.setattr(workspace.cache, "load", lose)
    with pytest.raises(ExecutionError) as caught:
        run.run()
    assert isinstance(caught.value.cause, Corrupted)
    newest = max(workspace.runs([]), key=lambda record: record.started_at)
    failure = workspace.failure(newest.run_id)
    assert failure is not None
    assert (failure.failure_class, failure.resumable) == ("workspace", False)


def test_nodes_find_their_root_and_nobody_else_does(workspace: Workspace) -> None:
    seen: list[Path] = []
    FileRun(two_step_app(lambda: seen.append(_write_mid())), workspace).run()
    assert seen == [workspace.root]
    assert root() == Path.cwd()


def _write_mid() -> Path:
    (root() / "mid.txt").write_text("x")
    return root()


def test_an_async_node_that_fails_leaves_no_checkpoint(workspace: Workspace) -> None:
    async def first() -> None:
        raise RuntimeError("no")

    with pytest.raises(ExecutionError):
        asyncio.run(FileRun(two_step_app(first), workspace).arun())
    [record] = workspace.runs([])
    assert workspace.checkpoints(record.run_id, []) == {}
    assert workspace.trace(record.run_id, []) == {"first": "failed"}


@pytest.mark.parametrize("what", ["mode", "update"])
def test_entry_that_holds_something_else_than_was_recorded_is_not_used(
    workspace: Workspace, what: str
) -> None:
    """An entry with a right checksum, whose mode or update is another, is damage: the node runs.

    Seen to fail without the comparison with the hash of the result in the checkpoint.
    """
    result = FileRun(two_step_app(), workspace).run()
    task = workspace.checkpoints(result.run_id, [])["first"].task_hash
    entry = workspace.cache.load(task)
    assert entry is not None
    [artifact] = entry.artifacts
    items = tuple(msgspec.structs.replace(item, mode=0o666) for item in artifact.items)
    other = (
        msgspec.structs.replace(entry, artifacts=(msgspec.structs.replace(artifact, items=items),))
        if what == "mode"
        else msgspec.structs.replace(entry, update=b"\x81\xa1n\x01")
    )
    workspace.cache.store(workspace.places, other)
    (workspace.root / "mid.txt").unlink()
    plan = FileRun(two_step_app(), workspace).plan()
    assert [str(why) for why in plan.decisions["first"].reasons] == [
        "its cache entry is damaged: it has different content than was recorded"
    ]
    assert list(FileRun(two_step_app(), workspace).run().executed) == ["first", "second"]
