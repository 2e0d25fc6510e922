"""Old file runs go, and nothing that a later run still looks at."""

from __future__ import annotations

from pathlib import Path
from time import time_ns

import pytest

from milecastle import ExecutionError, InvalidRequest
from milecastle.builds import FileRun, Workspace, let_runs_go
from tests.unit.builds.building import lay_out, two_step_app, upper


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(lay_out(tmp_path) / ".ws")


def ids(workspace: Workspace) -> list[str]:
    return [record.run_id for record in workspace.runs([])]


def fail() -> None:
    raise ConnectionError("not today")


def test_the_last_ones_stay_and_the_rest_goes_with_its_trace(workspace: Workspace) -> None:
    made = [FileRun(two_step_app(), workspace).run("clean").run_id for _ in range(4)]
    foreseen = let_runs_go(workspace, "default", keep_last=2, dry_run=True)
    assert ids(workspace) == made
    assert let_runs_go(workspace, "default", keep_last=2) == foreseen
    assert set(foreseen.runs) == set(made[:2])
    assert ids(workspace) == made[2:]
    assert {path.stem for path in (workspace.path / "trace").iterdir()} == set(made[2:])
    assert not workspace.run_folder(made[0]).exists()
    assert FileRun(two_step_app(), workspace).plan().executed == ()


def test_what_the_newest_run_took_over_stays(workspace: Workspace) -> None:
    first = FileRun(two_step_app(), workspace).run().run_id
    between = FileRun(two_step_app(), workspace).run().run_id
    newest = FileRun(two_step_app(), workspace).run().run_id
    assert let_runs_go(workspace, "default", keep_last=1).runs == (between,)
    assert ids(workspace) == [first, newest]
    assert FileRun(two_step_app(), workspace).plan().reused == ("first", "second")


def test_the_newest_failed_run_stays_and_can_be_resumed(workspace: Workspace) -> None:
    with pytest.raises(ExecutionError):
        FileRun(two_step_app(second=fail), workspace).run()
    [failed] = ids(workspace)
    for _ in range(3):
        FileRun(two_step_app(second=upper("mid.txt", "out.txt")), workspace).run("clean")
    assert len(let_runs_go(workspace, "default", keep_last=1).runs) == 2
    assert FileRun(two_step_app(), workspace).plan("resume-only").previous_run_id == failed


def test_with_both_rules_only_what_both_allow_is_deleted(workspace: Workspace) -> None:
    for _ in range(3):
        FileRun(two_step_app(), workspace).run("clean")
    now = time_ns() // 1000
    hour_ago = now - 3_600_000_000
    assert let_runs_go(workspace, "default", keep_last=1, started_before=hour_ago).runs == ()
    assert let_runs_go(workspace, "default", keep_last=3, started_before=now).runs == ()
    assert len(let_runs_go(workspace, "default", started_before=now).runs) == 2


def test_other_tenants_threads_and_runs_at_work_are_left_alone(workspace: Workspace) -> None:
    for thread in ("a", "b"):
        for _ in range(2):
            FileRun(two_step_app(), workspace, thread=thread).run("clean")
    run = FileRun(two_step_app(), workspace, thread="a")
    assert let_runs_go(workspace, "other", keep_last=1).runs == ()
    with workspace.holding(run.key):
        gone = let_runs_go(workspace, "default", keep_last=1, threads=["a"])
    assert (gone.runs, gone.busy) == ((), ("a",))
    assert len(let_runs_go(workspace, "default", keep_last=1, threads=["b"]).runs) == 1
    assert len(ids(workspace)) == 3


def test_a_rule_is_needed(workspace: Workspace) -> None:
    with pytest.raises(InvalidRequest, match="nothing selected"):
        let_runs_go(workspace, "default")
