"""Graphs whose nodes declare files, built and planned in a workspace.

The workspace is ``--workspace``; the one that the app was compiled with; or the folder of a
``file://`` store. Unless the app says otherwise, declared files are in the current folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from milecastle.app.application import App
from milecastle.builds.file_run import FileResult, FileRun, load_file_run
from milecastle.builds.nodes import files_of
from milecastle.builds.plan import Plan
from milecastle.builds.workspace import Workspace
from milecastle.cli.exits import OK, REFUSED
from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session, path_of
from milecastle.cli.verb import app_argument
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Mode
from milecastle.views.builds import plan_document
from milecastle.views.documents import FileRunDocument
from milecastle.views.values import plain

F = TypeVar("F", bound=Callable[..., Any])

_BUILD_OPTIONS = (
    app_argument,
    click.option(
        "--thread", metavar="NAME", help="Runs of a thread build on each other; the graph's name."
    ),
    click.option("--input", "given", metavar="JSON", help="A JSON object, @FILE, or - for stdin."),
    click.option(
        "--mode",
        type=click.Choice(get_args(Mode)),
        default="incremental",
        help="What of an earlier run may be reused; incremental unless set.",
    ),
    click.option("--workspace", metavar="DIR", help="Where records and cached results are stored."),
)


def build_options(command: F) -> F:
    for option in reversed(_BUILD_OPTIONS):
        command = option(command)
    return command


def declares_files(app: App[Any]) -> bool:
    """True if any node declares inputs, outputs or a cache."""
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
    name = thread or app.graph.name
    return load_file_run(
        lambda: app,
        workspace,
        thread=name,
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
        reused=result.reused,
        state=plain(result.state),
    )
    if session.as_json:
        print_document(document)
        return
    counts = f"{len(document.executed)} executed, {len(document.reused)} reused"
    print_lines([f"thread {key.thread}: completed, {counts} (run {result.run_id})"])
    print_lines(f"  {name}: {'; '.join(why)}" for name, why in document.executed.items())
