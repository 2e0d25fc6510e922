"""R10: a run is recorded even when its graph cannot be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milecastle import END, START, StateGraph
from milecastle.builds import Workspace
from milecastle.builds.file_run import load_file_run
from milecastle.errors import InvalidRequest
from milecastle.views.documents import RunLine, RunsDocument
from tests.unit.builds.building import Job

UNDEFINED = """
from typing import TypedDict
from milecastle import START, StateGraph
class S(TypedDict):
    n: int
graph = StateGraph(S)
graph.add_edge(START, 'missing')
app = graph.compile()
"""

BROKEN = {
    "import": ("import no_such_module_anywhere\n", "ModuleNotFoundError"),
    "syntax": ("def (:\n", "SyntaxError"),
    "definition": (UNDEFINED, "DefinitionError"),
    "attribute": ("other = 1\n", "LoadError"),
}

PLACES = {
    "SQLite": ("--store", "sqlite:///new.db"),
    "file store": ("--store", "file://store"),
    "workspace": ("--workspace", ".work"),
    "workspace that is a file": ("--workspace", "taken"),
}


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "milecastle", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ}
    )


def runs_in(folder: Path, *place: str) -> tuple[RunLine, ...]:
    printed = call(folder, "runs", "--json", *place)
    assert printed.returncode == 0, printed.stderr
    return msgspec.json.decode(printed.stdout, type=RunsDocument).runs


@pytest.mark.requirement("R10", api="milecastle build")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("thread", [None, "mine"])
def test_run_whose_graph_cannot_be_loaded_is_recorded(
    tmp_path: Path, place: str, thread: str | None
) -> None:
    """In a store with the named thread, in a workspace also without: a run, and why it failed.

    Seen to fail when only a store is written to, and when a workspace that is a file is written to
    as it is.
    """
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "broken.py").write_text(BROKEN["import"][0])
    named = () if thread is None else ("--thread", thread)
    ended = call(tmp_path, "build", "broken:app", *named, *PLACES[place], "--mode", "resume-only")
    assert ended.returncode == 1
    if thread is None and PLACES[place][0] == "--store":
        assert not [*tmp_path.glob("new.db"), *tmp_path.glob("store/**/*.jsonl")]
        return
    assert "recorded as run" in ended.stderr
    [run] = runs_in(tmp_path, *PLACES[place])
    assert (run.thread, run.status, run.mode) == (thread or "broken:app", "failed", "resume-only")
    assert run.run_id in ended.stderr
    assert run.failure is not None
    assert (run.failure.failure_class, run.failure.resumable) == ("graph", False)
    assert run.failure.error_type == "ModuleNotFoundError"
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.requirement("R10", api="milecastle run")
def test_run_of_a_thread_whose_graph_cannot_be_loaded_is_recorded(tmp_path: Path) -> None:
    """Broken on purpose: the app loaded without `load_or_record`."""
    (tmp_path / "broken.py").write_text(BROKEN["import"][0])
    ended = call(tmp_path, "run", "broken:app", "--thread", "mine", *PLACES["SQLite"])
    assert ended.returncode == 1
    [run] = runs_in(tmp_path, *PLACES["SQLite"])
    assert (run.thread, run.status, run.mode) == ("mine", "failed", "incremental")


def test_a_mistyped_reference_leaves_no_thread(tmp_path: Path) -> None:
    """``run demo:nope`` left a failed thread named ``demo:nope``."""
    (tmp_path / "broken.py").write_text(BROKEN["attribute"][0])
    assert call(tmp_path, "run", "broken:nope", *PLACES["SQLite"]).returncode == 1
    assert not (tmp_path / "new.db").exists()


@pytest.mark.requirement("R10", api="milecastle build")
@pytest.mark.parametrize("how", BROKEN)
def test_every_way_of_not_loading_is_recorded(tmp_path: Path, how: str) -> None:
    """Imports, syntax, a definition with problems, an attribute that is not there.

    Seen to fail when only errors of the import are caught.
    """
    text, error_type = BROKEN[how]
    (tmp_path / "broken.py").write_text(text)
    assert call(tmp_path, "build", "broken:app", "--workspace", ".work").returncode == 1
    [run] = runs_in(tmp_path, "--workspace", ".work")
    assert run.failure is not None
    assert (run.failure.failure_class, run.failure.error_type) == ("graph", error_type)


@pytest.mark.requirement("R10", api="App.build")
@pytest.mark.parametrize("through", ["app", "function"])
def test_graph_that_is_not_fit_for_a_file_run_is_recorded(tmp_path: Path, through: str) -> None:
    """A loop cannot be planned: the run has its record, whichever call asked for it.

    Seen to fail when the file run is made outside `load_file_run`.
    """
    workspace = Workspace(tmp_path / ".work")
    graph = StateGraph(Job, name="loop")
    graph.add_node("again", lambda: {"n": 1})
    graph.add_edge(START, "again")
    graph.add_edge("again", END, when=lambda state: True)
    graph.add_edge("again", "again")
    app = graph.compile(workspace=workspace)
    calls: dict[str, Any] = {
        "app": lambda: app.build({}),
        "function": lambda: load_file_run(lambda: app, workspace, thread="loop"),
    }
    with pytest.raises(InvalidRequest, match="cannot run as a file graph"):
        calls[through]()
    [record] = workspace.runs([])
    failure = workspace.failure(record.run_id)
    assert failure is not None
    assert (record.key.thread, failure.failure_class) == ("loop", "graph")
