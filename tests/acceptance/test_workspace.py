"""R3, R4, R6: the workspace, when it may be resumed in, and the modes of runs in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from milecastle import END, START, App, ExecutionError, ResumeRefused, StateGraph, open_store
from milecastle.builds import FileRun, Workspace, files, root
from milecastle.builds.file_run import load_file_run
from milecastle.errors import Corrupted
from tests.unit.builds.building import Job, lay_out, two_step_app, upper


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return lay_out(tmp_path / "project")


@pytest.fixture
def workspace(folder: Path) -> Workspace:
    return Workspace(folder / ".milecastle")


def fail() -> None:
    raise ConnectionError("not today")


def failed_run(workspace: Workspace, **nodes: Callable[..., Any]) -> str:
    """A run that failed, in its second node unless others are given; gives its id."""
    with pytest.raises(ExecutionError):
        FileRun(two_step_app(**(nodes or {"second": fail})), workspace).run()
    return max(workspace.runs([]), key=lambda record: record.started_at).run_id


def newest_failure(workspace: Workspace) -> Any:
    newest = max(workspace.runs([]), key=lambda record: record.started_at)
    return workspace.failure(newest.run_id)


# -- R3 ------------------------------------------------------------------------------------


def write(name: str) -> None:
    (root() / name).write_text(name)


@pytest.mark.requirement("R3", api="builds.Workspace")
def test_file_store_and_file_runs_share_one_workspace(folder: Path) -> None:
    """`threads/`, `runs/`, `cache/`, `trace/` and nothing else; each run with its files.

    Seen to fail with `run.json` under another name, with a failure that is not written, with node
    checkpoints in the folder of the run, and with a trace outside `trace/`.
    """
    place = folder / ".milecastle"
    app = two_step_app(second=fail)
    graph = StateGraph(Job, name="threads")
    graph.add_node("only", fail)
    graph.add_edges(START, "only", END)
    with pytest.raises(ExecutionError):
        graph.compile(store=f"file://{place}").invoke({"n": 1}, thread="t")
    workspace = Workspace(place)
    run_id = failed_run(workspace)
    assert sorted(path.name for path in place.iterdir()) == ["cache", "runs", "threads", "trace"]
    assert (place / "threads" / "default" / "t.jsonl").is_file()
    assert (place / "trace" / f"{run_id}.jsonl").is_file()
    files_of_run = place / "runs" / run_id
    found = {str(path.relative_to(files_of_run)) for path in files_of_run.rglob("*.json")}
    assert found == {"run.json", "failure.json", "nodes.json", "checkpoints/first.json"}
    of_thread = [path for path in (place / "runs").iterdir() if path.is_dir()]
    [other] = [path for path in of_thread if path != files_of_run]
    assert {path.name for path in other.iterdir()} == {"run.json", "failure.json"}
    for run in of_thread:
        record = json.loads((run / "run.json").read_bytes())
        assert (record["run_id"], record["status"]) == (run.name, "failed")
        assert record["previous_run_id"] is None
        assert json.loads((run / "failure.json").read_bytes())["error_type"] == "ConnectionError"
    assert app.fingerprint == json.loads((files_of_run / "run.json").read_bytes())["fingerprint"]


HOSTILE = ["a/b", "a_b", "A_b", "../up", "a:b", "con", "é", "e\u0301", " x ", ".x", "x" * 400, "?"]


@pytest.mark.requirement("R3", api="builds.Workspace.checkpoint_path")
def test_node_ids_are_escaped_deterministically(workspace: Workspace) -> None:
    """Each node has its own file inside the folder, on any disk, and the same in every process.

    Seen to fail when the id itself is the name, and when what was escaped has no hash.
    """
    graph = StateGraph(Job, name="names")
    for number, name in enumerate(HOSTILE):
        output = f"out-{number}.txt"
        graph.add_node(name, files(outputs=output)(partial(write, output)))
        graph.add_edges(START, name, END)
    result = FileRun(graph.compile(), workspace).run()
    folder = workspace.run_folder(result.run_id) / "checkpoints"
    found = {path.name: json.loads(path.read_bytes())["node"] for path in folder.iterdir()}
    assert sorted(found.values()) == sorted(HOSTILE)
    assert len({name.casefold() for name in found}) == len(HOSTILE)
    assert not any(set(name) & set('\\/:*?"<>|') for name in found)
    code = (
        "import sys, json; from milecastle.builds import Workspace; "
        "w = Workspace(sys.argv[1]); "
        "print(json.dumps([w.checkpoint_path('r', n).name for n in json.loads(sys.argv[2])]))"
    )
    given = [sys.executable, "-c", code, str(workspace.path), json.dumps(HOSTILE)]
    elsewhere = json.loads(subprocess.run(given, capture_output=True, check=True).stdout)
    assert elsewhere == [workspace.checkpoint_path("r", name).name for name in HOSTILE]
    assert {*elsewhere} == {*found}


MAY_BE_LEFT_OUT = {"node", "wake_at", "owner", "input_digest", "metadata"}
"""What a record has only if there is something to say."""

RECORDS: dict[str, Callable[[Workspace, str], Any]] = {
    "run.json": lambda workspace, run_id: workspace.run(run_id),
    "failure.json": lambda workspace, run_id: workspace.failure(run_id),
    "nodes.json": lambda workspace, run_id: _checkpoints(workspace, run_id),
    "checkpoints/first.json": lambda workspace, run_id: _checkpoints(workspace, run_id),
}


def _checkpoints(workspace: Workspace, run_id: str) -> Any:
    problems: list[str] = []
    found = workspace.checkpoints(run_id, problems)
    if problems:
        raise Corrupted(problems[0], place=problems[0].rpartition(" at ")[2])
    return found


@pytest.mark.requirement("R3", api="builds.Workspace")
@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_read_strictly(workspace: Workspace, name: str) -> None:
    """A field more, a field less or a field of another type is an error that names the file.

    Seen to fail when a shape takes unknown fields, and when one of its fields has a default.
    """
    run_id = failed_run(workspace)
    if name != "nodes.json":  # as after a death: the checkpoints are read one by one
        nodes = workspace.run_folder(run_id) / "nodes.json"
        nodes.write_text(json.dumps(json.loads(nodes.read_bytes()) | {"ended": False}))
    path = workspace.run_folder(run_id) / name
    told = json.loads(path.read_bytes())
    assert RECORDS[name](workspace, run_id)
    changed = [told | {"unknown": 1}]
    changed += [{key: told[key] for key in told if key != field} for field in told]
    changed += [told | {field: [["not this"]]} for field in told]
    for one in changed:
        if told.keys() - one.keys() <= MAY_BE_LEFT_OUT and one.items() <= told.items():
            continue
        path.write_text(json.dumps(one))
        with pytest.raises(Corrupted) as caught:
            RECORDS[name](workspace, run_id)
        assert str(path) in str(caught.value), one


@pytest.mark.requirement("R3", api="builds.Workspace")
def test_records_are_written_whole_and_durably(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written beside, synced, renamed, the folder synced: in this order, for every record.

    Seen to fail without the sync of the file, without that of the folder, and when the file is
    written in place. A write that fails half way leaves the old record.
    """
    calls: list[tuple[str, str]] = []

    def spy(name: str, place: Callable[..., Any]) -> None:
        honest = getattr(os, name)

        def call(*given: Any, **more: Any) -> Any:
            where = str(place(*given))
            if str(workspace.root) in where:  # threads of tests before may still write
                calls.append((name, where))
            return honest(*given, **more)

        monkeypatch.setattr(os, name, call)

    def path_of(fd: int, *_: Any) -> str:
        return str(Path(f"/proc/self/fd/{fd}").readlink())

    def both(source: Any, target: Any) -> str:
        return f"{source} -> {target}"

    for name in ("write", "fdatasync", "fsync"):
        spy(name, path_of)
    for name in ("replace", "rename"):
        spy(name, both)
    run_id = failed_run(workspace)
    records = ["run.json", "failure.json", "nodes.json", "checkpoints/first.json"]
    for path in (workspace.run_folder(run_id) / name for name in records):
        renamed = [
            (at, place.split(" -> ")[0])
            for at, (name, place) in enumerate(calls)
            if name in ("replace", "rename") and place.endswith(f"-> {path}")
        ]
        assert renamed, path
        for at, temporary in renamed:
            before = [name for name, place in calls[:at] if place == temporary]
            assert before[-1] == "fdatasync", (path, before)
            assert "write" in before
            assert Path(temporary).parent == path.parent
            after = next(one for one in calls[at + 1 :] if one[0] == "fsync")
            assert after == ("fsync", str(path.parent))
        assert ("write", str(path)) not in calls
    kept = (workspace.run_folder(run_id) / "run.json").read_bytes()
    record = workspace.run(run_id)
    assert record is not None

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        workspace.write_run(record)
    assert (workspace.run_folder(run_id) / "run.json").read_bytes() == kept


@pytest.mark.requirement("R3", api="open_store")
@pytest.mark.parametrize("url", ["sqlite:///{}/runs.db", "file://{}/store"])
def test_stores_hold_the_same_facts_as_the_workspace(tmp_path: Path, url: str) -> None:
    """A run and its failure, as rows or in the log: every field that `run.json` has.

    Seen to fail when a store drops `previous_run_id` or the causes of a failure.
    """
    graph = StateGraph(Job, name="rows")

    def break_off() -> None:
        try:
            fail()
        except ConnectionError as error:
            raise RuntimeError("broken off") from error

    graph.add_node("only", break_off)
    graph.add_edges(START, "only", END)
    app = graph.compile(store=url.format(tmp_path))
    with pytest.raises(ExecutionError):
        app.invoke({"n": 1}, thread="t")
    with pytest.raises(ExecutionError):
        app.resume("t")
    direct = open_store(url.format(tmp_path))
    second, first = direct.store.runs(app.state("t").key)
    assert (first.previous_run_id, second.previous_run_id) == (None, first.run_id)
    assert (first.retry_count, second.retry_count) == (0, 1)
    facts = (second.graph, second.fingerprint, second.mode, second.status)
    assert facts == ("rows", app.fingerprint, "incremental", "failed")
    assert second.ended_at is not None
    assert first.started_at < second.started_at <= second.ended_at
    failure = direct.store.failure(second.key, second.run_id)
    assert failure is not None
    assert (failure.failure_class, failure.resumable, failure.node) == ("execution", True, "only")
    assert (failure.error_type, failure.message) == ("RuntimeError", "broken off")
    assert any("ConnectionError" in cause for cause in failure.causes)


# -- R2: a workspace that is not fit -------------------------------------------------------


def stray_file(workspace: Workspace) -> Path:
    path = workspace.path / "intruder.txt"
    path.write_text("x")
    return path


def stray_folder(workspace: Workspace) -> Path:
    path = workspace.path / "evil"
    path.mkdir()
    return path


def stray_in_cache(workspace: Workspace) -> Path:
    path = workspace.path / "cache" / "more"
    path.write_text("x")
    return path


def stray_among_runs(workspace: Workspace) -> Path:
    path = workspace.path / "runs" / "notes.txt"
    path.write_text("x")
    return path


def stray_in_a_run(workspace: Workspace) -> Path:
    run = next(workspace.runs([]))
    path = workspace.run_folder(run.run_id) / "more.json"
    path.write_text("{}")
    return path


def stray_checkpoint(workspace: Workspace) -> Path:
    run = next(workspace.runs([]))
    path = workspace.run_folder(run.run_id) / "checkpoints" / "notes.txt"
    path.write_text("x")
    return path


def stray_blob(workspace: Workspace) -> Path:
    path = workspace.path / "cache" / "blobs" / "notes"
    path.write_text("x")
    return path


def stray_entry(workspace: Workspace) -> Path:
    shelf = next((workspace.path / "cache" / "entries").iterdir())
    path = shelf / "notes.json"
    path.write_text("{}")
    return path


def stray_trace(workspace: Workspace) -> Path:
    path = workspace.path / "trace" / "run.sh"
    path.write_text("x")
    return path


def linked_folder(workspace: Workspace) -> Path:
    path = workspace.path / "trace"
    path.rename(workspace.root / "elsewhere")
    path.symlink_to(workspace.root / "elsewhere")
    return path


def linked_run(workspace: Workspace) -> Path:
    path = workspace.path / "runs" / "linked"
    path.symlink_to(workspace.root)
    return path


STRAYS = [
    stray_file,
    stray_folder,
    stray_in_cache,
    stray_among_runs,
    stray_in_a_run,
    stray_checkpoint,
    stray_blob,
    stray_entry,
    stray_trace,
    linked_folder,
    linked_run,
]


@pytest.mark.requirement("R2", "R4", api="builds.FileRun.run")
@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("mode", ["clean", "incremental", "resume-only"])
def test_unauthorised_entry_is_rejected_and_recorded(
    workspace: Workspace, folder: Path, stray: Callable[[Workspace], Path], mode: Any
) -> None:
    """Whatever the mode: nothing runs, the plan says so, and a run with a failure is left.

    Seen to fail when the layout is not looked at, for each place that `layout` looks at, when
    only `resume-only` refuses, and when a refusal is not recorded.
    """
    failed_run(workspace)
    before = {path.name: path.read_text() for path in folder.glob("*.txt")}
    path = stray(workspace)
    run = FileRun(two_step_app(), workspace)
    plan = run.plan(mode)
    assert [str(path) in str(reason) for reason in plan.verdict.reasons] == [True]
    expected = ResumeRefused if mode == "resume-only" else Corrupted
    with pytest.raises(expected, match="was not created by Milecastle: move it elsewhere"):
        run.run(mode)
    assert {path.name: path.read_text() for path in folder.glob("*.txt")} == before
    record = max(workspace.runs([]), key=lambda record: record.started_at)
    assert (record.mode, record.status) == (mode, "failed")
    failure = workspace.failure(record.run_id)
    assert failure is not None
    assert (failure.failure_class, failure.resumable) == ("workspace", False)
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        path.rmdir()
    if stray is linked_folder:
        (workspace.root / "elsewhere").rename(path)
    assert run.run(mode).run_id  # what was refused is not what is resumed


@pytest.mark.requirement("R4", api="builds.FileRun.plan")
@pytest.mark.parametrize("damage", ["missing", "garbage", "changed"])
def test_damaged_checkpoint_of_a_run_that_ended_is_noticed(
    workspace: Workspace, damage: str
) -> None:
    """Only the file with all of them was read."""
    failed_run(workspace)
    run = next(workspace.runs([]))
    (path,) = (workspace.run_folder(run.run_id) / "checkpoints").glob("*.json")
    if damage == "missing":
        path.unlink()
    elif damage == "garbage":
        path.write_text("garbage")
    else:
        path.write_text(path.read_text().replace('"exit_code": 0', '"exit_code": 1'))
    again = FileRun(two_step_app(), workspace)
    assert not again.plan("resume-only").verdict
    (found,) = again.plan("incremental").damage
    assert str(path) in found


@pytest.mark.requirement("R2", api="builds.FileRun.run")
@pytest.mark.parametrize("mode", ["clean", "incremental", "resume-only"])
def test_workspace_that_is_a_file_leaves_a_run_beside_it(folder: Path, mode: Any) -> None:
    """The run and its `failure.json` are in `<workspace>.refused`, and the file stays.

    Seen to fail when the workspace is used without a look at what it is.
    """
    place = folder / "taken"
    place.write_text("mine")
    workspace = Workspace(place, root=folder)
    expected = ResumeRefused if mode == "resume-only" else Corrupted
    with pytest.raises(expected, match="is not a folder: choose another path, or move it away"):
        FileRun(two_step_app(), workspace).run(mode)
    [run] = (folder / "taken.refused" / "runs").iterdir()
    assert {path.name for path in run.iterdir()} == {"run.json", "failure.json"}
    assert json.loads((run / "failure.json").read_bytes())["failure_class"] == "workspace"
    assert [record.mode for record in workspace.recorder().runs([])] == [mode]
    assert place.read_text() == "mine"
    assert not FileRun(two_step_app(), workspace).plan(mode).verdict


# -- R4 ------------------------------------------------------------------------------------


class Case:
    """A failed run that may be resumed, until something is done to it."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.failed = failed_run(workspace)
        self.app: App[Job] = two_step_app(second=upper("mid.txt", "out.txt"))
        self.options: dict[str, Any] = {}

    def checkpoint(self) -> Path:
        return self.workspace.checkpoint_path(self.failed, "first")

    def task(self) -> str:
        return self.workspace.checkpoints(self.failed, [])["first"].task_hash


def damage_the_records(case: Case) -> None:
    (case.workspace.run_folder(case.failed) / "nodes.json").write_text("{")


def lose_the_cache_entry(case: Case) -> None:
    case.workspace.cache.entry_path(case.task()).unlink()


def name_an_unknown_run(case: Case) -> None:
    case.options = {"previous": "no-such-run"}


def name_a_run_that_completed(case: Case) -> None:
    done = FileRun(case.app, case.workspace, thread="other").run().run_id
    case.options = {"previous": done, "retry_count": 1}


def name_a_run_that_was_never_loaded(case: Case) -> None:
    def load() -> App[Job]:
        raise ImportError("no such module")

    with pytest.raises(ImportError):
        load_file_run(load, case.workspace, thread="two")
    newest = max(case.workspace.runs([]), key=lambda record: record.started_at)
    case.options = {"previous": newest.run_id}


def change_the_graph(case: Case) -> None:
    graph = StateGraph(Job, name="two")
    graph.add_node("first", files(inputs="in.txt", outputs="mid.txt")(upper("in.txt", "mid.txt")))
    graph.add_node("second", files(inputs="mid.txt", outputs="out.txt")(fail))
    graph.add_node("third", fail)
    graph.add_edges(START, "first", "second", "third", END)
    case.app = graph.compile()


def count_no_retry(case: Case) -> None:
    case.options = {"retry_count": 0}


def count_two_retries(case: Case) -> None:
    case.options = {"retry_count": 2}


def edit_an_input_upstream(case: Case) -> None:
    (case.workspace.root / "in.txt").write_text("edited")


BREACHES: dict[Callable[[Case], None], set[str]] = {
    damage_the_records: {"workspace"},
    lose_the_cache_entry: {"workspace", "upstream"},
    name_an_unknown_run: {"previous"},
    name_a_run_that_completed: {"failed"},
    name_a_run_that_was_never_loaded: {"resumable", "graph"},
    change_the_graph: {"graph"},
    count_no_retry: {"retry"},
    count_two_retries: {"retry"},
    edit_an_input_upstream: {"upstream"},
}


@pytest.mark.requirement("R4", api="builds.FileRun.run")
@pytest.mark.parametrize("breach", BREACHES)
def test_resume_is_refused_for_each_reason_alone(
    workspace: Workspace, folder: Path, breach: Callable[[Case], None]
) -> None:
    """What was resumable is refused by each breach, with that reason; nothing has run.

    Seen to fail, each for its own case, without any one of the rules in `eligibility.judge`.
    """
    case = Case(workspace)
    assert FileRun(case.app, workspace).plan("resume-only").verdict
    breach(case)
    run = FileRun(case.app, workspace)
    plan = run.plan("resume-only", **case.options)
    assert {reason.rule for reason in plan.verdict.reasons} == BREACHES[breach]
    with pytest.raises(ResumeRefused) as caught:
        run.run("resume-only", **case.options)
    assert list(caught.value.reasons) == [str(reason) for reason in plan.verdict.reasons]
    assert not (folder / "out.txt").exists() or breach is name_a_run_that_completed


@pytest.mark.requirement("R4", api="builds.FileRun.run")
def test_resume_in_order_counts_one_retry_and_runs_what_is_missing(workspace: Workspace) -> None:
    """The control of the refusals: with nothing broken, the run before is named and continued.

    Seen to fail when the retry count is not raised, or raised by two.
    """
    case = Case(workspace)
    result = FileRun(case.app, workspace).run("resume-only")
    assert (list(result.executed), result.reused) == (["second"], ("first",))
    record = workspace.run(result.run_id)
    assert record is not None
    assert (record.previous_run_id, record.retry_count) == (case.failed, 1)


# -- R6 ------------------------------------------------------------------------------------


@pytest.mark.requirement("R6", api="builds.FileRun.run")
def test_clean_reuses_nothing_and_incremental_what_is_valid(
    workspace: Workspace, folder: Path
) -> None:
    """Outputs that lie there are made again by `clean`, and are restored by `incremental`.

    Seen to fail when `clean` plans like `incremental`, and when `incremental` executes all.
    """
    run = FileRun(two_step_app(), workspace)
    assert list(run.run("incremental").executed) == ["first", "second"]
    (folder / "mid.txt").write_text("edited by hand")
    valid = run.run("incremental")
    assert (valid.executed, valid.reused) == ({}, ("first", "second"))
    assert (folder / "mid.txt").read_text() == "HELLO"
    (folder / "mid.txt").write_text("edited by hand")
    clean = run.run("clean")
    assert (list(clean.executed), clean.reused) == (["first", "second"], ())
    assert (folder / "mid.txt").read_text() == "HELLO"


def nothing_before(workspace: Workspace) -> None:
    """No run at all."""


def completed_before(workspace: Workspace) -> None:
    FileRun(two_step_app(), workspace).run()


def failed_in_the_first_node(workspace: Workspace) -> None:
    failed_run(workspace, first=fail)


def killed_in_the_first_node(workspace: Workspace) -> None:
    code = (
        "import os, signal, sys; from tests.unit.builds.building import two_step_app; "
        "from milecastle.builds import FileRun, Workspace; "
        "FileRun(two_step_app(lambda: os.kill(os.getpid(), signal.SIGKILL)), "
        "Workspace(sys.argv[1])).run()"
    )
    given = [sys.executable, "-c", code, str(workspace.path)]
    ended = subprocess.run(given, cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.requirement("R6", api="builds.FileRun.run")
@pytest.mark.parametrize(
    ("before", "why"),
    [
        (nothing_before, "no run of this graph has failed"),
        (completed_before, "no run of this graph has failed"),
        (failed_in_the_first_node, "left no checkpoint to resume from"),
        (killed_in_the_first_node, "left no checkpoint to resume from"),
    ],
)
def test_resume_only_refuses_if_there_is_nothing_to_resume_from(
    workspace: Workspace, before: Callable[[Workspace], None], why: str
) -> None:
    """No failed run, or one that left no checkpoint: refused, and `incremental` does the work.

    Seen to fail when a run without checkpoints is resumed like any other.
    """
    before(workspace)
    run = FileRun(two_step_app(upper("in.txt", "mid.txt")), workspace)
    assert [why in str(reason) for reason in run.plan("resume-only").verdict.reasons] == [True]
    runs = len(list(workspace.runs([])))
    with pytest.raises(ResumeRefused, match=why):
        run.run("resume-only")
    assert len(list(workspace.runs([]))) == runs
    shutil.rmtree(workspace.root / "out.txt", ignore_errors=True)
    assert run.run("incremental").run_id
