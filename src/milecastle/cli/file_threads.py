"""File runs among the threads, for commands that list and show.

Their records are in a workspace: the one of ``--workspace``, the app's, or the folder of a file
store, whose own runs are in the same folder and are distinguished by their log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import click
import msgspec.structs

from milecastle.builds.records import NodeCheckpoint
from milecastle.builds.workspace import Workspace
from milecastle.cli.file_runs import find_workspace
from milecastle.cli.printing import print_document, print_facts, print_failure, print_table
from milecastle.cli.session import Session
from milecastle.errors import InvalidRequest
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.store import Store
from milecastle.views.documents import FileHistoryDocument, FileShowDocument, NodeLine, ThreadLine
from milecastle.views.lines import moment, names, run_line, seconds, thread_line


class SearchedPlaces(NamedTuple):
    """Where threads and runs are searched: at least one of the two is set."""

    store: Store | None
    files: FileThreads | None


class FileThreads:
    """The file runs of one tenant in one workspace."""

    def __init__(self, workspace: Workspace, tenant: str) -> None:
        self._workspace = workspace.recorder()
        self._tenant = tenant

    def runs(self, thread: str | None = None, limit: int | None = None) -> list[RunRecord]:
        """Runs by thread, newest first within each, at most ``limit`` of each."""
        by_thread: dict[str, list[RunRecord]] = {}
        for record in self._workspace.runs([]):
            if record.key.tenant == self._tenant and thread in (None, record.key.thread):
                by_thread.setdefault(record.key.thread, []).append(record)
        return [
            record
            for _, records in sorted(by_thread.items())
            for record in sorted(records, key=_age, reverse=True)[:limit]
        ]

    def threads(self, status: RunStatus | None, after: str | None) -> list[ThreadLine]:
        """Each thread with its newest run."""
        lines = [
            msgspec.structs.replace(thread_line(ThreadInfo.of(record)), kind="files")
            for record in self.runs(limit=1)
            if after is None or record.key.thread > after
        ]
        return [line for line in lines if status in (None, line.status)]

    def failure(self, record: RunRecord) -> Failure | None:
        """Why a run failed."""
        return self._workspace.failure(record.run_id)

    def find(self, thread: str, run_id: str = "") -> RunRecord | None:
        """The newest run of a thread, or the one whose id starts with this prefix.

        ``None`` if there is none.

        Raises:
            InvalidRequest: no run, or several, have an id with this prefix.
        """
        runs = self.runs(thread)
        found = [record for record in runs if record.run_id.startswith(run_id)]
        if not runs or not run_id:
            return runs[0] if runs else None
        if len(found) != 1:
            how_many = f"{len(found)} runs" if found else "no run"
            raise InvalidRequest(
                f"thread '{thread}' has {how_many} whose id begins with '{run_id}'"
            )
        return found[0]

    def show(self, session: Session, record: RunRecord) -> None:
        """Print one run with its completed nodes."""
        nodes = sorted(self._nodes(record), key=lambda node: node.ended_at)
        document = FileShowDocument(
            tenant=self._tenant,
            thread=record.key.thread,
            status=record.status,
            run=run_line(record, self.failure(record)),
            nodes=tuple(map(_node_line, nodes)),
        )
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

    def history(self, session: Session, thread: str, limit: int | None) -> None:
        """Print every node that a run of the thread completed, newest first."""
        made = [
            node
            for record in self.runs(thread)
            for node in self._nodes(record)
            if node.run_id == record.run_id
        ]
        made.sort(key=lambda node: (node.ended_at, node.node), reverse=True)
        lines = tuple(map(_node_line, made[:limit]))
        if session.as_json:
            print_document(FileHistoryDocument(tenant=self._tenant, thread=thread, nodes=lines))
        else:
            _print_nodes(lines)

    def _nodes(self, record: RunRecord) -> Iterable[NodeCheckpoint]:
        return self._workspace.checkpoints(record.run_id, []).values()


def open_source(session: Session, folder: str | None) -> SearchedPlaces:
    """The store and the workspace of this call.

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
    """The error for an unknown name."""
    return InvalidRequest(
        f"there is no thread '{thread}' in tenant '{session.tenant}': `milecastle ls` lists them"
    )


def _age(record: RunRecord) -> tuple[int, str]:
    return (record.started_at, record.run_id)


def _node_line(node: NodeCheckpoint) -> NodeLine:
    return NodeLine(
        node=node.node,
        run_id=node.run_id,
        started_at=moment(node.started_at),
        ended_at=moment(node.ended_at),
        outputs=node.outputs,
    )


def _print_nodes(lines: Iterable[NodeLine]) -> None:
    rows = [
        [line.node, seconds(line.ended_at), names(tuple(line.outputs)), line.run_id]
        for line in lines
    ]
    print_table(["NODE", "ENDED", "OUTPUTS", "RUN"], rows)
