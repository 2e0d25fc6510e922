"""Workspaces of every version of the format are read forever.

The golden folder was written by ``python -m tests.migration.test_workspace FOLDER``. Until the
first release is tagged, a change of version 1 makes it again; then it never changes.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, TypedDict
from unittest.mock import patch

import pytest

from milecastle import END, START, App, ExecutionError, StateGraph, ThreadKey
from milecastle.builds import Workspace, root
from milecastle.errors import FormatTooNew

GOLDEN = Path(__file__).parent / "golden" / "workspace-v1"
KEY = ThreadKey("default", "golden")


class Job(TypedDict, total=False):
    words: int


def golden_app(folder: Path, ran: list[str], *, fails: bool = False) -> App[Job]:
    """in.txt -> mid.txt -> out.txt; the last node may fail."""

    def upper() -> None:
        ran.append("upper")
        (root() / "mid.txt").write_text((root() / "in.txt").read_text().upper())

    def double() -> dict[str, Any]:
        ran.append("double")
        if fails:
            raise ConnectionError("not today")
        text = (root() / "mid.txt").read_text() * 2
        (root() / "out.txt").write_text(text)
        return {"words": len(text.split())}

    graph = StateGraph(Job, name=KEY.thread)
    graph.add_node("upper", upper, inputs="in.txt", outputs="mid.txt", version="1")
    graph.add_node("double", double, inputs="mid.txt", outputs="out.txt", version="1")
    graph.add_edges(START, "upper", "double", END)
    return graph.compile(workspace=folder / ".milecastle")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = Path(shutil.copytree(GOLDEN, tmp_path / "project"))
    for path in made.glob("*.txt"):
        path.chmod(0o644)  # it is part of a result
    return made


def test_golden_workspace_is_read_and_reused(folder: Path) -> None:
    """Fails if a record, a node checkpoint or a cache entry is read otherwise: nodes run again."""
    workspace = Workspace(folder / ".milecastle")
    problems: list[str] = []
    completed, failed = sorted(workspace.runs(problems), key=lambda run: run.status)
    assert ((completed.status, failed.status), problems) == (("completed", "failed"), [])
    failure = workspace.failure(failed.run_id)
    assert failure is not None
    assert (failure.error_type, failure.node) == ("ConnectionError", "double")
    assert list(workspace.checkpoints(completed.run_id, [])) == ["upper", "double"]
    assert workspace.trace(failed.run_id, []) == {"upper": "complete", "double": "failed"}
    ran: list[str] = []
    result = golden_app(folder, ran).build()
    assert (result.state, result.reused_nodes, ran) == ({"words": 6}, ("upper", "double"), [])
    (folder / "out.txt").unlink()
    golden_app(folder, ran).build()
    assert ((folder / "out.txt").read_text(), ran) == ("THE AMBER ROOM\n" * 2, [])


def test_record_of_a_newer_version_is_refused_and_unchanged(folder: Path) -> None:
    """Fails if it is taken for damage, or written over."""
    for path in folder.glob(".milecastle/runs/*/nodes.json"):
        path.write_text(path.read_text().replace('"format":1', '"format":2', 1))
    workspace = Workspace(folder / ".milecastle")
    run, *_ = workspace.runs([])
    path = workspace.run_folder(run.run_id) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    before = path.read_bytes()
    with pytest.raises(FormatTooNew):
        workspace.run(run.run_id)
    assert path.read_bytes() == before


def write(folder: Path) -> None:
    folder.mkdir()
    (folder / "in.txt").write_text("the amber room\n")
    with patch("platform.node", lambda: "wall"):
        with pytest.raises(ExecutionError):
            golden_app(folder, [], fails=True).build()
        golden_app(folder, []).build()
    (failure,) = folder.glob(".milecastle/runs/*/failure.json")
    here = str(Path(__file__).parents[2])
    failure.write_text(failure.read_text().replace(here, "/project"))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
