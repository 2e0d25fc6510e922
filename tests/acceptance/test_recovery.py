"""R: runs over files. Records, eligibility, modes, task hashes, plans, command nodes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milecastle import END, START, App, ExecutionError, ResumeRefused, StateGraph
from milecastle.builds import (
    Cache,
    FileRun,
    Plan,
    Workspace,
    command,
    files,
    root,
)
from milecastle.builds.reuse import with_caches
from milecastle.errors import CommandFailed, FileRefused, Unavailable
from tests.unit.builds.building import Job, lay_out, two_step_app, upper


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return lay_out(tmp_path / "project")


@pytest.fixture
def workspace(folder: Path) -> Workspace:
    return Workspace(folder / ".milecastle")


def fail() -> None:
    raise ConnectionError("not today")


def fail_in_second(workspace: Workspace) -> str:
    """A run whose first node is complete and whose second failed; gives its id."""
    with pytest.raises(ExecutionError):
        FileRun(two_step_app(second=fail), workspace).run()
    return [record.run_id for record in workspace.runs([])][-1]


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


def damage_blobs(workspace: Workspace) -> None:
    for path in (workspace.path / "cache" / "blobs").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"damaged")


def reasons(plan: Plan, node: str) -> list[str]:
    return [str(why) for why in plan.decisions[node].reasons]


def refusal(run: FileRun, **options: Any) -> list[str]:
    plan = run.plan("resume-only", **options)
    with pytest.raises(ResumeRefused) as caught:
        run.run("resume-only", **options)
    assert list(caught.value.reasons) == [str(reason) for reason in plan.verdict.reasons]
    return list(caught.value.reasons)


# -- R1, R2, R3, R10: records --------------------------------------------------------------


@pytest.mark.requirement("R1", "R3", api="builds.Workspace")
def test_each_file_run_leaves_its_record(workspace: Workspace) -> None:
    """`runs/<run-id>/run.json` holds ids, graph, fingerprint, mode, status, counts and times."""
    result = FileRun(two_step_app(), workspace).run("clean")
    told = json.loads((workspace.path / "runs" / result.run_id / "run.json").read_bytes())
    assert told["run_id"] == result.run_id
    assert (told["graph"], told["mode"], told["status"]) == ("two", "clean", "completed")
    assert (told["retry_count"], told["previous_run_id"]) == (0, None)
    assert told["fingerprint"] == two_step_app().fingerprint
    assert told["started_at"] < told["ended_at"]
    assert not (workspace.path / "runs" / result.run_id / "failure.json").exists()


@pytest.mark.requirement("R2", api="builds.Workspace.failure")
def test_a_failed_file_run_leaves_one_failure(workspace: Workspace) -> None:
    """Class, resumable, node, type, message, places; no values."""
    run_id = fail_in_second(workspace)
    failure = workspace.failure(run_id)
    assert failure is not None
    assert (failure.failure_class, failure.resumable, failure.node) == ("execution", True, "second")
    assert (failure.error_type, failure.message, failure.attempt) == (
        "ConnectionError",
        "not today",
        1,
    )
    assert "in fail" in failure.traceback[-1]
    record = workspace.run(run_id)
    assert record is not None
    assert record.status == "failed"


def _write(name: str, text: str) -> None:
    (root() / name).write_text(text)


# -- R4, R5: eligibility -------------------------------------------------------------------


@pytest.mark.requirement("R4", "R5", api="builds.FileRun.run")
def test_failed_run_is_found_even_if_it_was_resumed(workspace: Workspace) -> None:
    """The latest start among those that failed: later ones that ended well do not matter."""
    failed = fail_in_second(workspace)
    run = FileRun(two_step_app(), workspace)
    once, again = run.run("resume-only"), run.run("resume-only")
    assert list(once.executed) == list(again.executed) == ["second"]
    records = [workspace.run(found.run_id) for found in (once, again)]
    assert [(one.previous_run_id, one.retry_count) for one in records if one] == [(failed, 1)] * 2


@pytest.mark.requirement("R5", api="builds.FileRun.run")
def test_of_several_failed_runs_the_latest_is_found(workspace: Workspace) -> None:
    """Whatever ended well in between."""
    fail_in_second(workspace)
    FileRun(two_step_app(), workspace).run("resume-only")
    later = fail_in_second(workspace)
    assert FileRun(two_step_app(), workspace).plan("resume-only").previous_run_id == later


@pytest.mark.requirement("R4", "R8", api="builds.FileRun.plan")
def test_a_damaged_workspace_is_refused_with_all_reasons(
    workspace: Workspace, folder: Path
) -> None:
    """A missing cache entry is damage; incremental does the work again and says why."""
    failed = fail_in_second(workspace)
    checkpoint = workspace.checkpoints(failed, [])["first"]
    workspace.cache.entry_path(checkpoint.task_hash).unlink()
    found = refusal(FileRun(two_step_app(), workspace))
    assert any(reason.startswith("the workspace is damaged: node 'first'") for reason in found)
    plan = FileRun(two_step_app(), workspace).plan("incremental")
    assert reasons(plan, "first") == ["its cache entry is missing: the workspace is damaged"]
    FileRun(two_step_app(), workspace).run("incremental")
    assert files_of(folder)["out.txt"] == "HELLO"


@pytest.mark.requirement("R5", api="builds.FileRun.run")
def test_the_run_to_resume_may_be_given(workspace: Workspace) -> None:
    """Without a name it is the last that failed; with one it is that."""
    first = fail_in_second(workspace)
    second = fail_in_second(workspace)
    run = FileRun(two_step_app(), workspace)
    assert run.plan("resume-only").previous_run_id == second
    assert run.plan("resume-only", previous=first).previous_run_id == first


# -- R6: modes -----------------------------------------------------------------------------


@pytest.mark.requirement("R6", api="builds.FileRun.arun")
def test_a_file_run_on_an_event_loop_does_the_same(workspace: Workspace, folder: Path) -> None:
    """Async nodes are reused like others."""

    async def first() -> dict[str, int]:
        await asyncio.sleep(0)
        upper("in.txt", "mid.txt")()
        return {"n": 7}

    async def go() -> tuple[Any, Any]:
        run = FileRun(two_step_app(first), workspace)
        return await run.arun(), await run.arun()

    one, two = asyncio.run(go())
    assert (list(one.executed), two.reused) == (["first", "second"], ("first", "second"))
    assert one.state == two.state == {"n": 7}
    assert files_of(folder)["out.txt"] == "HELLO"


@pytest.mark.requirement("R6", api="builds.FileRun.run")
def test_two_runs_of_one_thread_do_not_meet(workspace: Workspace) -> None:
    """The second waits, and gets an error if that takes too long."""
    run = FileRun(two_step_app(), workspace, wait=0.05)
    with workspace.holding(run.key), pytest.raises(Unavailable, match="another run of 'two'"):
        run.run()


# -- R7: task hashes and validity ----------------------------------------------------------


def edit_the_code(folder: Path) -> App[Job]:
    del folder
    return two_step_app(lambda: _write("mid.txt", "other"))


def edit_the_input(folder: Path) -> App[Job]:
    (folder / "in.txt").write_text("new")
    return two_step_app()


def delete_the_input(folder: Path) -> App[Job]:
    (folder / "in.txt").unlink()
    return two_step_app()


CHANGES: dict[str, tuple[Callable[[Path], App[Job]], str]] = {
    "code": (edit_the_code, "its code changed"),
    "input": (edit_the_input, "input 'in.txt' changed"),
    "missing input": (delete_the_input, "input 'in.txt' is missing"),
}


@pytest.mark.requirement("R7", api="builds.files")
@pytest.mark.parametrize("what", CHANGES)
def test_what_the_task_hash_covers_makes_a_node_run_again(
    workspace: Workspace, folder: Path, what: str
) -> None:
    """Code and inputs of a node; and what follows it runs too."""
    FileRun(two_step_app(), workspace).run()
    change, reason = CHANGES[what]
    plan = FileRun(change(folder), workspace).plan()
    assert reasons(plan, "first") == [reason]
    assert reasons(plan, "second") == ["upstream node 'first' is executed"]


@pytest.mark.requirement("R7", api="builds.files")
def test_declared_version_represents_the_code(workspace: Workspace) -> None:
    """With `version=` an edited node is the same until its author says otherwise."""

    def app(text: str, version: str) -> App[Job]:
        graph = StateGraph(Job, name="v")
        node = files(outputs="x.txt", version=version)(lambda: _write("x.txt", text))
        graph.add_node("make", node)
        graph.add_edges(START, "make", END)
        return graph.compile()

    FileRun(app("one", "1"), workspace).run()
    assert FileRun(app("two", "1"), workspace).plan().executed == ()
    assert reasons(FileRun(app("one", "2"), workspace).plan(), "make") == ["its code changed"]


@pytest.mark.requirement("R7", api="builds.FileRun.plan")
def test_a_node_that_the_trace_does_not_show_complete_runs_again(workspace: Workspace) -> None:
    """Also if its checkpoint says that it was."""
    result = FileRun(two_step_app(), workspace).run()
    workspace.trace_path(result.run_id).write_bytes(b"")
    plan = FileRun(two_step_app(), workspace).plan()
    assert reasons(plan, "first") == ["the trace does not show it complete, but nothing of it"]


@pytest.mark.requirement("R7", api="builds.FileRun.run")
def test_a_node_that_does_not_make_its_output_has_failed(workspace: Workspace) -> None:
    """It leaves no checkpoint, even if an old output lay there."""
    FileRun(two_step_app(), workspace).run()
    with pytest.raises(ExecutionError) as caught:
        FileRun(two_step_app(lambda: None), workspace).run()
    assert isinstance(caught.value.cause, FileRefused)
    newest = max(workspace.runs([]), key=lambda record: record.started_at)
    assert workspace.checkpoints(newest.run_id, []) == {}


@pytest.mark.requirement("R7", api="builds.Cache")
def test_the_state_counts_for_a_node_that_reads_it(workspace: Workspace) -> None:
    """All of it, or what the key of its cache says."""

    def app(key: Callable[[Any], Any] | None) -> App[Job]:
        graph = StateGraph(Job, name="s")

        def double(state: Job) -> Any:
            return {"told": str(2 * state.get("n", 0))}

        graph.add_node("double", files(cache=Cache(key=key))(double))
        graph.add_edges(START, "double", END)
        return graph.compile()

    run = FileRun(app(None), workspace)
    assert run.run(input={"n": 1}).state["told"] == "2"
    assert run.run(input={"n": 1}).reused == ("double",)
    assert reasons(run.plan(input={"n": 2}), "double") == ["the input of the run changed"]
    assert run.run(input={"n": 2}).state["told"] == "4"


# -- R8: the plan --------------------------------------------------------------------------


@pytest.mark.requirement("R8", api="builds.FileRun.plan")
def test_a_plan_writes_nothing_and_can_be_printed(workspace: Workspace, folder: Path) -> None:
    """Per node: reuse or execute, and why."""
    FileRun(two_step_app(), workspace).run()
    (folder / "out.txt").unlink()
    assert str(FileRun(two_step_app(), workspace).plan()).splitlines() == [
        "incremental: 0 to execute, 2 to reuse",
        "  reuse    first: valid",
        "  reuse    second: valid; 'out.txt' will be restored",
    ]
    assert "out.txt" not in files_of(folder)
    assert len(list(workspace.runs([]))) == 1


@pytest.mark.requirement("R8", api="builds.FileRun.run")
@pytest.mark.parametrize("how", ["deleted", "edited"])
def test_outputs_are_put_back_before_anything_downstream_runs(
    workspace: Workspace, folder: Path, how: str
) -> None:
    """A deleted or edited output comes from the cache, and the node is not run."""
    fail_in_second(workspace)
    if how == "deleted":
        (folder / "mid.txt").unlink()
    else:
        (folder / "mid.txt").write_text("edited by hand")
    result = FileRun(two_step_app(), workspace).run("resume-only")
    assert result.reused == ("first",)
    assert files_of(folder) == {"in.txt": "hello", "mid.txt": "HELLO", "out.txt": "HELLO"}


@pytest.mark.requirement("R8", api="builds.FileRun.run")
def test_a_damaged_cache_is_never_put_back(workspace: Workspace, folder: Path) -> None:
    """Resuming is refused; incremental does the work again."""
    fail_in_second(workspace)
    (folder / "mid.txt").unlink()
    damage_blobs(workspace)
    [damage, upstream] = refusal(FileRun(two_step_app(), workspace))
    assert "its cache entry is damaged" in damage
    assert "'first', upstream of the resume point" in upstream
    result = FileRun(two_step_app(), workspace).run("incremental")
    assert list(result.executed) == ["first", "second"]
    assert files_of(folder)["mid.txt"] == "HELLO"
    (folder / "mid.txt").unlink()
    assert FileRun(two_step_app(), workspace).run("incremental").reused == ("first", "second")
    assert files_of(folder)["mid.txt"] == "HELLO"


@pytest.mark.requirement("R8", api="builds.FileRun.run")
def test_changed_graph_is_planned_again(workspace: Workspace, folder: Path) -> None:
    """Incremental keeps what the change does not touch."""
    FileRun(two_step_app(), workspace).run()
    graph = StateGraph(Job, name="two")
    graph.add_node("first", files(inputs="in.txt", outputs="mid.txt")(upper("in.txt", "mid.txt")))
    graph.add_node(
        "third", files(inputs="mid.txt", outputs="third.txt")(upper("mid.txt", "third.txt"))
    )
    graph.add_edges(START, "first", "third", END)
    result = FileRun(graph.compile(), workspace).run()
    assert (list(result.executed), result.reused) == (["third"], ("first",))


@pytest.mark.requirement("R8", api="builds.FileRun.run")
def test_a_node_that_declares_nothing_runs_and_what_follows_too(workspace: Workspace) -> None:
    """Nothing is skipped that was not declared to be skippable."""
    graph = StateGraph(Job, name="plain")
    calls: list[str] = []
    graph.add_node("plain", lambda: calls.append("plain"))
    graph.add_node("after", files(outputs="x.txt", version="1")(lambda: _write("x.txt", "1")))
    graph.add_edges(START, "plain", "after", END)
    run = FileRun(graph.compile(), workspace)
    run.run()
    assert list(run.run().executed) == ["plain", "after"]
    assert calls == ["plain", "plain"]


# -- R9: commands --------------------------------------------------------------------------


@pytest.mark.requirement("R9", api="builds.command")
def test_command_node_runs_in_the_root_and_its_output_is_stored(
    workspace: Workspace, folder: Path
) -> None:
    """Arguments, environment, exit code, captured output."""

    def app(code: str, mark: str) -> App[Job]:
        graph = StateGraph(Job, name="c")
        graph.add_node(
            command(
                "talk",
                [sys.executable, "-c", code],
                inputs="in.txt",
                outputs="out.txt",
                env={"MARK": mark},
                update=lambda ended: {"told": ended.output.strip()},
            )
        )
        graph.add_edges(START, "talk", END)
        return graph.compile()

    code = "import os; open('out.txt', 'w').write(open('in.txt').read()); print(os.environ['MARK'])"
    result = FileRun(app(code, "one"), workspace).run()
    assert (result.state, files_of(folder)["out.txt"]) == ({"told": "one"}, "hello")
    assert workspace.log_path(result.run_id, "talk").read_text() == "one\n"
    again = FileRun(app(code, "one"), workspace).run()
    assert (again.reused, again.state) == (("talk",), {"told": "one"})
    changed = FileRun(app(code, "two"), workspace).plan()
    assert reasons(changed, "talk") == ["its parameters changed"]
    bad = "import sys; print('why'); sys.exit(4)"
    with pytest.raises(ExecutionError) as caught:
        FileRun(app(bad, "one"), workspace).run()
    assert isinstance(caught.value.cause, CommandFailed)
    assert caught.value.cause.exit_code == 4
    assert "what it printed is in" in str(caught.value.cause)


# -- caches of state nodes -----------------------------------------------------------------


@pytest.mark.requirement("R7", api="StateGraph.compile")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_state_node_with_a_cache_is_not_done_again(workspace: Workspace, kind: str) -> None:
    """By its key, in any run, until its time to live is over."""
    calls: list[int] = []

    def double(state: Job) -> Any:
        calls.append(state.get("n", 0))
        return {"told": str(2 * state.get("n", 0))}

    async def adouble(state: Job) -> Any:
        return double(state)

    graph = StateGraph(Job, name="s")
    function: Any = double if kind == "sync" else adouble
    cache = Cache(key=lambda state: state["n"] % 10)
    graph.add_node("double", files(cache=cache, version="1")(function))
    graph.add_edges(START, "double", END)
    runner = graph.compile().runner
    app = App(runner.rebuilt(with_caches(runner.graph, workspace)))
    found = [app.invoke({"n": n}).state.get("told") for n in (1, 2, 11, 1)]
    assert found == ["2", "4", "2", "2"]
    assert calls == [1, 2]
