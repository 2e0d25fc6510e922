"""File runs among the threads, for commands that list and show.

Their records are in a workspace: the one of ``--workspace``, the app's, or the folder of a file
store, whose own runs are in the same folder and are distinguished by their log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import click

from milecastle.cli.file_runs import find_workspace
from milecastle.cli.printing import print_document, print_facts, print_failure, print_table
from milecastle.cli.session import Session
from milecastle.errors import InvalidRequest
from milecastle.model.run import RunRecord
from milecastle.ports.store import Store
from milecastle.views.builds import FileThreads
from milecastle.views.documents import FileHistoryDocument, FileShowDocument, NodeLine
from milecastle.views.lines import names, seconds


class SearchedPlaces(NamedTuple):
    """Where threads and runs are searched: at least one of the two is set."""

    store: Store | None
    files: FileThreads | None


def print_file_run(session: Session, document: FileShowDocument) -> None:
    """Print one run with its completed nodes."""
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
    _print_nodes(document.nodes)


def print_file_history(session: Session, thread: str, lines: tuple[NodeLine, ...]) -> None:
    if session.as_json:
        tenant = session.tenant
        print_document(FileHistoryDocument(tenant=tenant, thread=thread, nodes=lines))
    else:
        _print_nodes(lines)


def open_source(session: Session, folder: str | None) -> SearchedPlaces:
    """This call's store and workspace.

    Raises:
        click.UsageError: neither is given.
    """
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
    """The run that ``thread`` or ``thread@run-id`` means; ``None`` if there is no such thread."""
    found = files.find(address)
    name, _, run_id = address.rpartition("@")
    return found or (files.find(name, run_id) if name else None)


def no_thread(session: Session, thread: str) -> InvalidRequest:
    return InvalidRequest(
        f"there is no thread '{thread}' in tenant '{session.tenant}': `milecastle ls` lists them"
    )


def _print_nodes(lines: Iterable[NodeLine]) -> None:
    rows = [
        [line.node, seconds(line.ended_at), names(tuple(line.outputs)), line.run_id]
        for line in lines
    ]
    print_table(["NODE", "ENDED", "OUTPUTS", "RUN"], rows)
