"""Graphs whose nodes declare files, run in a workspace: modes and plans.

The workspace is ``--workspace``; the one that the app was compiled with; or the folder of a
``file://`` store. Unless the app says otherwise, declared files lie in the current folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from milecastle.app.application import App
from milecastle.cli.documents import FileRunDocument, PlanDocument, PlanLine
from milecastle.cli.exits import OK, REFUSED
from milecastle.cli.places import path_of
from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session
from milecastle.cli.values import plain
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Mode
from milecastle.recovery.declarations import files_of
from milecastle.recovery.file_run import FileResult, FileRun
from milecastle.recovery.plan import Plan
from milecastle.recovery.workspace import Workspace

__all__ = ["declares_files", "file_run", "print_file_result", "print_plan"]


def declares_files(app: App[Any]) -> bool:
    """Whether any node says what it reads, makes or may reuse."""
    return any(files_of(node.function) is not None for node in app.graph.nodes.values())


def file_run(session: Session, app: App[Any], thread: str | None, folder: str | None) -> FileRun:
    """The run of a graph over files."""
    found = session.url()
    path = path_of(found.value) if found and found.value.startswith("file:") else None
    if folder:
        path = Path(folder)
    elif app.workspace is not None:
        return FileRun(app, app.workspace, thread=thread, tenant=session.tenant)
    if path is None:
        raise click.UsageError(
            "nodes of this graph declare files, which need a workspace: "
            "name one with --workspace DIR, compile(workspace=...), or a store file://DIR"
        )
    workspace = Workspace(path, root=session.folder)
    return FileRun(app, workspace, thread=thread, tenant=session.tenant)


def print_plan(session: Session, thread: str, plan: Plan) -> int:
    """Print what would be done and why; the exit code."""
    if session.as_json:
        lines = tuple(
            PlanLine(
                node=one.node,
                action=one.action,
                reasons=tuple(map(str, one.reasons)),
                restore=one.restore,
            )
            for one in plan.decisions.values()
        )
        document = PlanDocument(
            thread=thread,
            mode=plan.mode,
            refused=tuple(map(str, plan.verdict.reasons)),
            previous_run_id=plan.previous_run_id,
            nodes=lines,
        )
        print_document(document)
    else:
        print_lines(str(plan).splitlines())
    return OK if plan.verdict else REFUSED


def print_file_result(session: Session, key: ThreadKey, mode: Mode, result: FileResult) -> None:
    """Print what a run over files did."""
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
