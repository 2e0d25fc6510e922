"""The workspace: what is written is read back, strictly; what is damaged is named."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.builds.file_run import bury, bury_if_free, recording
from milecastle.builds.records import TraceFile, read_trace
from milecastle.builds.workspace import Workspace
from milecastle.disk.replacing import TEMPORARY, put, replacing
from milecastle.errors import Corrupted, FormatTooNew, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing.entries import Writer
from tests.unit.builds.facts import KEY, a_checkpoint, a_failure, a_run


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "ws")


def test_the_root_is_the_folder_above_unless_it_is_given(tmp_path: Path) -> None:
    assert Workspace(tmp_path / "ws").root == tmp_path
    assert Workspace(tmp_path / "ws", root=tmp_path / "other").root == tmp_path / "other"


def test_a_run_and_its_failure_are_read_back(workspace: Workspace) -> None:
    record, failure = a_run(metadata={"host": "h"}), a_failure()
    workspace.write_run(record)
    workspace.write_failure(KEY, failure)
    assert workspace.run("run-1") == record
    assert workspace.failure("run-1") == failure
    assert list(workspace.runs([])) == [record]


def test_missing_item_is_none(workspace: Workspace) -> None:
    assert workspace.run("run-1") is None
    assert workspace.failure("run-1") is None
    assert list(workspace.runs([])) == []
    assert workspace.checkpoints("run-1", []) == {}
    assert workspace.trace("run-1", []) == {}
    assert not workspace.has_plan("run-1")


def test_previous_run_id_is_always_there(workspace: Workspace) -> None:
    workspace.write_run(a_run())
    told = json.loads((workspace.run_folder("run-1") / "run.json").read_bytes())
    assert told["previous_run_id"] is None


def test_a_run_that_does_not_decode_is_a_problem_and_hides_no_other(workspace: Workspace) -> None:
    workspace.write_run(a_run("run-1"))
    workspace.write_run(a_run("run-2"))
    path = workspace.run_folder("run-1") / "run.json"
    path.write_text("{")
    problems: list[str] = []
    assert [record.run_id for record in workspace.runs(problems)] == ["run-2"]
    assert len(problems) == 1
    assert str(path) in problems[0]


def test_runs_of_a_file_store_in_the_same_folder_are_not_file_runs(workspace: Workspace) -> None:
    """Seen to fail without ``kind`` in run.json: a copied thread was listed twice."""
    with closing(JsonlStore(workspace.path)) as store:
        writer = Writer(ThreadKey("default", "thread")).begin(store)
    workspace.write_run(a_run())
    problems: list[str] = []
    assert [record.run_id for record in workspace.runs(problems)] == ["run-1"]
    assert workspace.run(writer.run.run_id) is None
    assert problems == []


def test_format_of_a_newer_version_is_recognized(workspace: Workspace) -> None:
    workspace.write_run(a_run())
    path = workspace.run_folder("run-1") / "run.json"
    told = json.loads(path.read_bytes())
    for change in ({"format": 2}, {"format": 2, "new_field": 1}):
        path.write_text(json.dumps(told | change))
        with pytest.raises(FormatTooNew):
            workspace.run("run-1")
    path.write_text(json.dumps(told | {"format": 0}))
    with pytest.raises(Corrupted):
        workspace.run("run-1")


# -- checkpoints of nodes ------------------------------------------------------------------


def test_resumed_run_has_what_it_reused_and_what_it_built(workspace: Workspace) -> None:
    old, new = a_checkpoint("a", run_id="run-0"), a_checkpoint("b", run_id="run-1")
    workspace.write_nodes("run-1", [old], ended=False)
    workspace.write_checkpoint(new)
    assert workspace.checkpoints("run-1", []) == {"a": old, "b": new}


def test_node_that_was_built_again_counts_as_it_was_built(workspace: Workspace) -> None:
    workspace.write_nodes("run-1", [a_checkpoint("a", run_id="run-0")], ended=False)
    workspace.write_checkpoint(a_checkpoint("a", run_id="run-1"))
    assert workspace.checkpoints("run-1", [])["a"].run_id == "run-1"


def test_a_run_that_ended_has_all_in_one_file(workspace: Workspace) -> None:
    workspace.write_checkpoint(a_checkpoint("b"))
    workspace.write_nodes("run-1", [a_checkpoint("a")], ended=True)
    assert set(workspace.checkpoints("run-1", [])) == {"a"}


@pytest.mark.parametrize("name", ["nodes.json", "checkpoints/b.json"])
@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', '{"format": 9}'])
def test_a_checkpoint_that_does_not_decode_is_a_problem(
    workspace: Workspace, name: str, text: str
) -> None:
    workspace.write_nodes("run-1", [], ended=False)
    workspace.write_checkpoint(a_checkpoint("b"))
    path = workspace.run_folder("run-1") / name
    path.write_text(text)
    problems: list[str] = []
    workspace.checkpoints("run-1", problems)
    assert len(problems) == 1
    assert str(path) in problems[0]


# -- the trace -----------------------------------------------------------------------------


def test_the_last_line_about_a_node_counts(tmp_path: Path) -> None:
    trace = TraceFile(tmp_path / "trace" / "t.jsonl")
    for event, node in (("started", "a"), ("complete", "a"), ("started", "b"), ("failed", "b")):
        trace.note(event, node)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    trace.close()
    assert read_trace(tmp_path / "trace" / "t.jsonl") == {"a": "complete", "b": "failed"}


def test_a_torn_last_line_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    whole = b'{"time":1,"event":"started","node":"a"}\n'
    path.write_bytes(whole + b'{"time":2,"event":"comp')
    assert read_trace(path) == {"a": "started"}
    path.write_bytes(b'{"time":2,"event"')
    assert read_trace(path) == {}


@pytest.mark.parametrize("line", [b"x", b'{"time":1,"event":"odd","node":"a"}', b""])
def test_any_other_line_that_does_not_decode_is_damage(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line + b'\n{"time":1,"event":"started","node":"a"}\n')
    with pytest.raises(Corrupted):
        read_trace(path)


def test_a_damaged_trace_is_a_problem_of_the_workspace(workspace: Workspace) -> None:
    workspace.trace_path("run-1").parent.mkdir(parents=True)
    workspace.trace_path("run-1").write_bytes(b"x\n")
    problems: list[str] = []
    assert workspace.trace("run-1", problems) == {}
    assert len(problems) == 1


# -- runs that end, fail and die -------------------------------------------------------------


def test_a_run_that_ends_well_is_completed(workspace: Workspace) -> None:
    with recording(workspace, a_run(status="running", ended_at=None)):
        pass
    record = workspace.run("run-1")
    assert record is not None
    assert record.status == "completed"
    assert record.ended_at is not None


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (Corrupted("damaged", place="x"), "workspace"),
        (ValueError("x"), "system"),
        (KeyboardInterrupt(), "system"),
    ],
)
def test_a_run_that_fails_has_one_failure(
    workspace: Workspace, error: BaseException, failure_class: str
) -> None:
    with pytest.raises(type(error)), recording(workspace, a_run(status="running")):
        raise error
    record, failure = workspace.run("run-1"), workspace.failure("run-1")
    assert record is not None
    assert failure is not None
    assert (record.status, failure.failure_class) == ("failed", failure_class)


def test_a_run_whose_process_died_gets_its_failure(workspace: Workspace) -> None:
    workspace.write_nodes("run-1", [], ended=False)
    workspace.write_run(a_run(status="running", retry_count=1))
    bury(workspace, KEY)
    record, failure = workspace.run("run-1"), workspace.failure("run-1")
    assert record is not None
    assert failure is not None
    assert record.status == "failed"
    assert (failure.failure_class, failure.resumable, failure.attempt) == ("system", True, 2)


def test_the_failure_of_a_run_that_died_while_failing_stays(workspace: Workspace) -> None:
    workspace.write_nodes("run-1", [], ended=False)
    workspace.write_run(a_run(status="running"))
    workspace.write_failure(KEY, a_failure(failure_class="workspace"))
    bury(workspace, KEY)
    failure = workspace.failure("run-1")
    assert failure is not None
    assert failure.failure_class == "workspace"


def test_runs_of_a_file_store_in_the_same_folder_are_left_alone(workspace: Workspace) -> None:
    workspace.write_run(a_run(status="running"))  # it has no plan: it is not a file run
    bury(workspace, KEY)
    record = workspace.run("run-1")
    assert record is not None
    assert record.status == "running"


def test_a_run_that_is_at_work_is_not_buried(workspace: Workspace) -> None:
    workspace.write_nodes("run-1", [], ended=False)
    workspace.write_run(a_run(status="running"))
    with workspace.holding(KEY):
        bury_if_free(workspace, KEY)
    assert workspace.failure("run-1") is None
    bury_if_free(workspace, KEY)
    assert workspace.failure("run-1") is not None


def test_a_thread_is_held_by_one_at_a_time(workspace: Workspace) -> None:
    with workspace.holding(KEY), pytest.raises(Unavailable, match="another run of 'build'"):
        workspace.holding(KEY, wait=0).__enter__()
    with workspace.holding(KEY, wait=0):
        pass


# -- writing -------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path / "f", b"old")

    def write() -> None:
        with replacing(tmp_path / "f") as temporary:
            temporary.write_bytes(b"new")
            assert temporary.name.startswith(TEMPORARY)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"
