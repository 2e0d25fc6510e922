"""Runs over files in `ls`, `show`, `history` and `runs`."""

from __future__ import annotations

import pytest

from milecastle.views.documents import FileHistoryDocument, FileShowDocument
from tests.unit.cli.commands import Desk
from tests.unit.cli.test_running_verbs import BUILD

FAILING = BUILD.replace('Path("c.txt").write_text', 'raise OSError("full"); print')

PLACES = {
    "named": ("graph.compile()", ("--workspace", ".work"), ("--workspace", ".work")),
    "of the app": (
        'graph.compile(workspace=".work")',
        (),
        ("--app", "build:app"),
    ),
    "of a file store": (
        "graph.compile()",
        ("--store", "file://.work"),
        ("--store", "file://.work"),
    ),
}


@pytest.fixture(params=PLACES)
def places(desk: Desk, request: pytest.FixtureRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A failed and a completed run over files; how to run one, and how to look at them."""
    compiled, running, looking = PLACES[request.param]
    desk.write("a.txt", "a")
    desk.write("build.py", FAILING.replace("graph.compile()", compiled))
    desk.call("build", "build:app", *running, code=1)
    desk.write("build.py", BUILD.replace("graph.compile()", compiled))
    desk.call("build", "build:app", *running)
    return running, looking


def test_file_runs_are_listed_and_shown(
    desk: Desk, places: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """In every verb, as text and as JSON, wherever the workspace is named.

    Seen to fail, verb by verb, when it looks at the store only.
    """
    _, looking = places
    [line] = desk.document("ls", *looking).threads
    assert (line.thread, line.status, line.graph, line.kind) == (
        "build",
        "completed",
        "build",
        "files",
    )
    assert "build" in desk.out("ls", *looking)
    newest, older = desk.document("runs", *looking).runs
    assert (newest.status, older.status, newest.previous_run_id) == (
        "completed",
        "failed",
        older.run_id,
    )
    assert (older.failure.failure_class, older.failure.node) == ("execution", "double")
    assert [run.run_id for run in desk.document("runs", "build", *looking).runs] == [
        newest.run_id,
        older.run_id,
    ]
    [one] = desk.document("runs", "build", "--run", older.run_id, *looking).runs
    assert one == older
    shown = desk.json(FileShowDocument, "show", "build", *looking)
    assert (shown.run, [node.node for node in shown.nodes]) == (newest, ["upper", "double"])
    first = desk.json(FileShowDocument, "show", f"build@{older.run_id}", *looking)
    assert (first.status, [node.node for node in first.nodes]) == ("failed", ["upper"])
    assert "OSError: full" in desk.out("show", f"build@{older.run_id}", *looking)
    history = desk.json(FileHistoryDocument, "history", "build", *looking)
    made = [(node.node, node.run_id, list(node.outputs)) for node in history.nodes]
    assert made == [
        ("double", newest.run_id, ["c.txt"]),
        ("upper", older.run_id, ["b.txt"]),
    ]
    assert "b.txt" in desk.out("history", "build", *looking)
    assert (
        len(desk.json(FileHistoryDocument, "history", "build", "--limit", "1", *looking).nodes) == 1
    )


def test_threads_and_file_runs_are_listed_together(desk: Desk) -> None:
    """By name, each once: a run that a file store records in the same folder is the store's."""
    desk.write("a.txt", "a")
    desk.write("build.py", BUILD)
    given = ("--store", "file://.work")
    desk.call("build", "build:app", *given)
    demo = ("run", "demo:app", "--input", '{"topic": "walls"}', *given)
    for thread in ("a", "z"):
        desk.call(*demo, "--thread", thread, code=3)
    lines = desk.document("ls", *given).threads
    assert [(line.thread, line.kind) for line in lines] == [
        ("a", "thread"),
        ("build", "files"),
        ("z", "thread"),
    ]
    limited = desk.document("ls", "--limit", "1", "--after", "a", *given).threads
    assert [line.thread for line in limited] == ["build"]
    waiting = desk.document("ls", "--status", "interrupted", *given).threads
    assert [line.thread for line in waiting] == ["a", "z"]
    assert [run.thread for run in desk.document("runs", *given).runs] == ["a", "z", "build"]
    assert desk.document("show", "a", *given).checkpoint.next == ("write",)


def test_names_that_mean_nothing_are_refused(
    desk: Desk, places: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """A thread, a run and a workspace that are not there."""
    _, looking = places
    for verb in ("show", "history", "runs"):
        assert "there is no thread 'other'" in desk.err(verb, "other", *looking, code=2)
    assert "no run whose id begins with 'ff'" in desk.err("show", "build@ff", *looking, code=2)
    assert "no workspace at .nowhere" in desk.err("ls", "--workspace", ".nowhere", code=2)
