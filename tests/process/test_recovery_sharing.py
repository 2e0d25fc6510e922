"""Several processes at once: one cache, one thread, and commands that outlive their run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from milecastle.builds import FileRun, Workspace
from milecastle.errors import Corrupted
from tests.unit.builds.building import lay_out, two_step_app

ROOT = Path(__file__).resolve().parents[2]


def test_processes_that_share_a_cache_never_see_half_a_file(tmp_path: Path) -> None:
    rounds = 40
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.process.recovery_sharers"),
                *(str(tmp_path), str(number), str(rounds)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    printed = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4
    found = [json.loads(line) for line in printed]
    assert sum(one["wrong"] for one in found) == 0
    assert sum(one["right"] for one in found) > 2 * rounds
    cache = Workspace(tmp_path / "ws").cache
    entries = [cache.load(task) for task in cache.names()]
    assert entries
    assert [cache.damage_of(entry.artifacts) for entry in entries if entry] == [[]] * len(entries)
    assert not list((tmp_path / "ws").rglob(".milecastle-tmp-*"))


OUTLIVING = """
import sys
from milecastle import END, START, StateGraph
from milecastle.builds import FileRun, Workspace, command
from tests.unit.builds.building import Job

slow = (
    "import time; open('begun', 'w').close(); time.sleep({seconds}); "
    "open('out.txt', 'w').write('late')"
)
graph = StateGraph(Job, name="two")
graph.add_node(command("slow", [sys.executable, "-c", slow], outputs="out.txt"))
graph.add_edges(START, "slow", END)
FileRun(graph.compile(), Workspace({folder!r})).run()
"""


@pytest.mark.skipif(os.name == "nt", reason="locks are not inherited there")
def test_a_command_that_outlives_its_killed_run_is_waited_for(tmp_path: Path) -> None:
    folder = lay_out(tmp_path / "project")
    text = OUTLIVING.format(seconds=2, folder=str(folder / ".milecastle"))
    process = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT)
    while not (folder / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    workspace = Workspace(folder / ".milecastle")
    result = FileRun(two_step_app(), workspace, wait=30).run()
    assert list(result.executed) == ["first", "second"]
    time.sleep(0.2)
    assert (folder / "out.txt").read_text() == "HELLO"  # the late one wrote before, not after


def test_a_checkpoint_without_its_outputs_would_be_found_out(tmp_path: Path) -> None:
    """The control: a workspace that lost what it said was safe is never trusted."""
    folder = lay_out(tmp_path / "project")
    workspace = Workspace(folder / ".milecastle")
    FileRun(two_step_app(), workspace).run()
    (folder / "mid.txt").unlink()
    for blob in workspace.cache.sizes():
        workspace.cache.blob_path(blob).unlink()
    plan = FileRun(two_step_app(), workspace).plan()
    assert plan.executed == ("first", "second")
    entry = workspace.cache.load(workspace.checkpoints(_newest(workspace), [])["first"].task_hash)
    assert entry is not None
    with pytest.raises(Corrupted):
        workspace.cache.restore(workspace.places, entry.artifacts[0], "first")


def _newest(workspace: Workspace) -> str:
    return max(workspace.runs([]), key=lambda record: record.started_at).run_id
