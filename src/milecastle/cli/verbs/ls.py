"""``milecastle ls``: the threads of a tenant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import cast, get_args

import click
import msgspec.structs

from milecastle.app.runtime.children import every_thread, own_threads
from milecastle.app.runtime.ownership import why_lost
from milecastle.cli.printing import counted, print_document, print_table, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb, workspace_option
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Store
from milecastle.views.documents import LsDocument, ThreadLine
from milecastle.views.lines import seconds, thread_line

_LOST = "lost"


@click.command("ls")
@click.option("--status", type=click.Choice([*get_args(RunStatus), _LOST]), help="Only these.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number to list.")
@click.option("--after", metavar="THREAD", help="Only threads whose name sorts after this one.")
@click.option("--subgraphs", is_flag=True, help="Include threads of subgraphs.")
@workspace_option
@app_option
@verb
def command(
    session: Session,
    status: str | None,
    limit: int | None,
    after: str | None,
    subgraphs: bool,
    workspace: str | None,
) -> None:
    """List threads.

    Sorted by name, each with its status and what it waits for, including file runs. A thread
    recorded as running is shown as lost unless its process is known to be alive.
    """
    from milecastle.cli.file_threads import open_source

    store, files = open_source(session, workspace)
    found: list[ThreadLine] = []
    if store is not None:
        found += islice(_of_store(store, session.tenant, status, after, subgraphs), limit)
    if files is not None and status != _LOST:
        others = files.threads(cast("RunStatus | None", status), after)
        found = sorted([*found, *others], key=lambda line: line.thread)
    lines = tuple(found[:limit])
    if session.as_json:
        print_document(LsDocument(tenant=session.tenant, threads=lines))
    elif not lines:
        say(f"tenant '{session.tenant}' has no matching threads in {session.describe_store()}")
    else:
        rows = [
            [
                t.thread,
                t.status,
                _waits_for(t),
                t.graph or "-",
                seconds(t.started_at),
                t.run_id,
                t.kind,
            ]
            for t in lines
        ]
        print_table(["THREAD", "STATUS", "WAITS FOR", "GRAPH", "STARTED", "RUN", "KIND"], rows)


def _of_store(
    store: Store, tenant: str, status: str | None, after: str | None, subgraphs: bool
) -> Iterator[ThreadLine]:
    """The threads of a store that have this status; running and lost are distinguished here."""
    recorded = cast("RunStatus | None", "running" if status == _LOST else status)
    listing = every_thread if subgraphs else own_threads
    for info in listing(store, tenant, status=recorded, after=after):
        line = _looked_at(store, info)
        if status in (None, line.status):
            yield line


def _looked_at(store: Store, info: ThreadInfo) -> ThreadLine:
    record = store.run(info.key, info.run_id) if info.status == "running" else None
    reason = why_lost(store, record) if record else ""
    line = thread_line(info)
    return msgspec.structs.replace(line, status=_LOST, reason=reason) if reason else line


def _waits_for(line: ThreadLine) -> str:
    if line.reason:
        return f"resume: {line.reason}"
    parts = [counted(line.questions, "question")] if line.questions else []
    return ", ".join([*parts, *([seconds(line.wake_at)] if line.wake_at else [])]) or "-"
