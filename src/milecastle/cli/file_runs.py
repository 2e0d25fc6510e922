"""Graphs whose nodes declare files: built and planned in a workspace, and listed among the threads.

The workspace is ``--workspace``; the app's own; or the folder of a ``file://`` store, whose own
runs are in the same folder and are distinguished by their log. Unless the app says otherwise,
declared files are in the current folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import click

from milecastle.app.application import App
from milecastle.builds.file_run import FileResult, FileRun, load_file_run
from milecastle.builds.nodes import files_of
from milecastle.builds.plan import Plan
from milecastle.builds.workspace import Workspace
from milecastle.cli.exits import OK, REFUSED
from milecastle.cli.printing import print_document, print_facts, print_failure, print_table
from milecastle.cli.session import Session, path_of
from milecastle.cli.verb import app_argument, several_options
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Mode, RunRecord
from milecastle.ports.store import Store
from milecastle.views.builds import FileThreads, plan_document
from milecastle.views.documents import (
    FileHistoryDocument,
    FileRunDocument,
    FileShowDocument,
    NodeLine,
)
from milecastle.views.lines import names, seconds
from milecastle.views.values import plain

build_options = several_options(
    app_argument,
    click.option(
        "--thread",
        metavar="NAME",
        help="Runs of a thread build on each other; the graph's name if not set.",
    ),
    click.option("--input", "given", metavar="JSON", help="A JSON object, @FILE, or - for stdin."),
    click.option(
        "--mode",
        type=click.Choice(get_args(Mode)),
        default="incremental",
        help="How much of an earlier run may be reused; incremental if not set.",
    ),
    click.option("--workspace", metavar="DIR", help="Where records and cached results are stored."),
)


def declares_files(app: App[Any]) -> bool:
    return any(files_of(node.function) is not None for node in app.graph.nodes.values())


def find_workspace(session: Session, app: App[Any] | None, folder: str | None) -> Workspace | None:
    if folder:
        return Workspace(folder, root=session.folder)
    if app is not None and app.workspace is not None:
        return app.workspace
    found = session.url()
    path = path_of(found.value) if found and found.value.startswith("file:") else None
    return None if path is None else Workspace(path, root=session.folder)


def file_run(
    session: Session, app: App[Any], thread: str | None, folder: str | None, mode: Mode
) -> FileRun:
    """A graph's file run; a graph that cannot be one is recorded as a failed run."""
    workspace = find_workspace(session, app, folder)
    if workspace is None:
        raise click.UsageError(
            "a build needs a workspace: name one with --workspace DIR, compile(workspace=...), "
            "or a store file://DIR; without files, write: milecastle run"
        )
    return load_file_run(
        lambda: app,
        workspace,
        thread=thread or app.graph.name,
        tenant=session.tenant,
        mode=mode,
        encryption=app.encryption,
    )


def print_plan(session: Session, thread: str, plan: Plan) -> int:
    session.report(plan_document(thread, plan), plan.lines())
    return OK if plan.verdict else REFUSED


def print_file_result(session: Session, key: ThreadKey, mode: Mode, result: FileResult) -> None:
    document = FileRunDocument(
        tenant=key.tenant,
        thread=key.thread,
        run_id=result.run_id,
        status="completed",
        mode=mode,
        executed={name: tuple(map(str, why)) for name, why in result.executed.items()},
        reused_nodes=result.reused,
        state=plain(result.state),
    )
    counts = f"{len(document.executed)} executed, {len(document.reused_nodes)} reused"
    head = f"thread {key.thread}: completed, {counts} (run {result.run_id})"
    executed = [f"  {name}: {'; '.join(why)}" for name, why in document.executed.items()]
    session.report(document, [head, *executed])


class SearchedPlaces(NamedTuple):
    store: Store | None
    files: FileThreads | None


def print_file_run(session: Session, document: FileShowDocument) -> None:
    if session.as_json:
        print_document(document)
        return
    run = document.run
    print_facts(
        {
            "thread": document.thread,
            "run": run.run_id,
            "status": run.status,
            "mode": run.mode,
            "started": run.started_at,
            "ended": run.ended_at or "-",
        }
    )
    if run.failure:
        print_failure(run.failure)
    print_table(_NODE_HEAD, _node_rows(document.nodes))


def print_file_history(session: Session, thread: str, lines: tuple[NodeLine, ...]) -> None:
    document = FileHistoryDocument(tenant=session.tenant, thread=thread, nodes=lines)
    session.report_table(document, _NODE_HEAD, _node_rows(lines))


def open_source(session: Session, folder: str | None) -> SearchedPlaces:
    store: Store | None = None
    missing: click.UsageError | None = None
    try:
        store = session.store()
    except click.UsageError as error:
        missing = error
    workspace = find_workspace(session, session.app() if session.named_app else None, folder)
    if missing is not None and workspace is None:
        raise missing
    if folder and workspace is not None and not workspace.recorder().path.is_dir():
        raise click.UsageError(f"there is no workspace at {folder}")
    files = None if workspace is None else FileThreads(workspace, session.tenant)
    return SearchedPlaces(store, files)


def find_file_run(files: FileThreads, address: str) -> RunRecord | None:
    """The run for ``thread`` or ``thread@run-id``; ``None`` if there is no such thread."""
    found = files.find(address)
    name, _, run_id = address.rpartition("@")
    return found or (files.find(name, run_id) if name else None)


def no_thread(session: Session, thread: str) -> InvalidRequest:
    return InvalidRequest(
        f"there is no thread '{thread}' in tenant '{session.tenant}': `milecastle ls` lists them"
    )


_NODE_HEAD = ("NODE", "ENDED", "OUTPUTS", "RUN")


def _node_rows(lines: Iterable[NodeLine]) -> list[list[str]]:
    return [
        [line.node, seconds(line.ended_at), names(tuple(line.outputs)), line.run_id]
        for line in lines
    ]
