"""Eviction: the cache keeps to its limit, and to what some run may still need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milecastle import END, START, App, ExecutionError, StateGraph
from milecastle.builds import FileRun, Workspace, evict, files, root
from milecastle.builds.upkeep import Erased, erase_from_workspace
from tests.unit.builds.building import Job

KILOBYTE = 1024


def app(letter: str, *, name: str = "g", fails: bool = False) -> App[Job]:
    """One node that writes a kilobyte of a letter, and one that may fail."""
    graph = StateGraph(Job, name=name)

    def write() -> None:
        (root() / f"{name}.txt").write_text(letter * KILOBYTE)

    def then() -> None:
        if fails:
            raise RuntimeError("no")

    graph.add_node("write", files(outputs=f"{name}.txt")(write))
    graph.add_node("then", files(version="1")(then))
    graph.add_edges(START, "write", "then", END)
    return graph.compile()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / ".ws")


def kept(workspace: Workspace) -> int:
    return sum(workspace.cache.sizes().values())


def test_the_oldest_goes_first_and_the_newest_run_keeps_all(workspace: Workspace) -> None:
    for letter in "abcd":
        FileRun(app(letter), workspace).run()
    assert kept(workspace) == 4 * KILOBYTE
    done = evict(workspace, 2 * KILOBYTE)
    assert (done.bytes, done.left) == (2 * KILOBYTE, 2 * KILOBYTE) == (2048, kept(workspace))
    assert FileRun(app("d"), workspace).plan().executed == ()
    assert evict(workspace, 0).left == KILOBYTE
    (workspace.root / "g.txt").unlink()
    assert FileRun(app("d"), workspace).run().reused == ("write", "then")


def test_within_the_limit_nothing_is_evicted(workspace: Workspace) -> None:
    FileRun(app("a"), workspace).run()
    FileRun(app("b"), workspace).run()
    assert evict(workspace, 10 * KILOBYTE).entries == 0
    assert kept(workspace) == 2 * KILOBYTE


def test_a_run_that_failed_keeps_what_it_needs_to_be_resumed(workspace: Workspace) -> None:
    with pytest.raises(ExecutionError):
        FileRun(app("a", fails=True), workspace).run()
    for letter in "bc":
        FileRun(app(letter, name="other"), workspace).run()
    evict(workspace, 0)
    assert kept(workspace) == 2 * KILOBYTE
    assert FileRun(app("a"), workspace).plan("resume-only").verdict


def test_a_run_that_is_at_work_keeps_what_it_took_over(workspace: Workspace) -> None:
    FileRun(app("a"), workspace).run()
    left: list[int] = []
    graph = StateGraph(Job, name="g")
    graph.add_node("write", app("a").graph.nodes["write"].function)
    graph.add_node("then", files(version="2")(lambda: left.append(evict(workspace, 0).left)))
    graph.add_edges(START, "write", "then", END)
    FileRun(graph.compile(), workspace).run()
    assert left == [KILOBYTE]


def test_the_limit_of_the_workspace_is_kept_after_each_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / ".ws", cache_limit=2 * KILOBYTE)
    for letter in "abcdef":
        FileRun(app(letter), workspace).run()
        assert kept(workspace) <= 2 * KILOBYTE


def test_blobs_that_belong_to_no_entry_go(workspace: Workspace) -> None:
    FileRun(app("a"), workspace).run()
    stray = workspace.cache.blob_path("ff" + "0" * 62)
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"x" * 5000)
    assert evict(workspace, 2 * KILOBYTE).left == KILOBYTE
    assert not stray.exists()


def test_what_was_used_lately_outlives_what_was_not(workspace: Workspace) -> None:
    for letter in "abc":
        FileRun(app(letter), workspace).run()
    ages = workspace.cache.tasks()
    for task in ages:
        os.utime(workspace.cache.entry_path(task), (1, 1))
    used = min(ages, key=ages.__getitem__)
    workspace.cache.touch(used)
    evict(workspace, 2 * KILOBYTE)
    assert used in workspace.cache.names()


def test_a_file_of_two_results_stays_until_both_are_evicted(workspace: Workspace) -> None:
    """Fails if a file goes with the first result that names it."""
    for name in ("one", "two"):
        FileRun(app("a", name=name), workspace, thread=name).run()
    for name in ("one", "two"):
        FileRun(app("b", name=name), workspace, thread=name).run()
    assert kept(workspace) == 2 * KILOBYTE
    done = evict(workspace, KILOBYTE)
    assert (done.entries >= 2, done.left, kept(workspace)) == (True, KILOBYTE, KILOBYTE)
    (workspace.root / "one.txt").unlink()
    assert FileRun(app("b", name="one"), workspace, thread="one").plan().executed == ()


def test_erasing_removes_damaged_results_and_leaves_those_of_others(workspace: Workspace) -> None:
    """Fails if an entry that cannot be read stays: nobody knows whose it is."""
    absent = Workspace(workspace.path / "absent")
    assert erase_from_workspace(absent, "default", ["a"]).entries == 0
    assert not absent.path.exists()
    for letter in "ab":
        FileRun(app(letter, name=letter), workspace, thread=letter).run()
    of_b = FileRun(app("b", name="b"), workspace, thread="b")
    tasks = workspace.cache.names()
    erased = erase_from_workspace(workspace, "default", ["a"])
    assert erased.threads == {"a"}
    left = workspace.cache.names()
    assert 0 < len(left) < len(tasks)
    assert of_b.plan().executed == ()
    for task in left:
        workspace.cache.entry_path(task).write_bytes(b"{")
    assert erase_from_workspace(workspace, "default", ["c"]) == Erased(frozenset(), len(left))
    assert (workspace.cache.names(), kept(workspace)) == (set(), 0)
