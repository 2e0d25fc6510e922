from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import cast, get_args

import click

from milecastle.cli.printing import counted, print_document, print_table, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb, workspace_option
from milecastle.model.run import RunStatus
from milecastle.views.documents import LsDocument, ThreadLine
from milecastle.views.lines import seconds
from milecastle.views.listing import LOST, thread_lines, with_tags


@click.command("ls")
@click.option("--status", type=click.Choice([*get_args(RunStatus), LOST]), help="Only these.")
@click.option("--graph", metavar="NAME", help="Only threads of this graph.")
@click.option("--tag", metavar="TAG", help="Only threads that have this tag.")
@click.option("--prefix", metavar="TEXT", help="Only threads whose name begins with this.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number to list.")
@click.option("--after", metavar="THREAD", help="Only threads whose name sorts after this one.")
@click.option("--subgraphs", is_flag=True, help="Include threads of subgraphs.")
@workspace_option
@app_option
@verb
def command(
    session: Session,
    status: str | None,
    graph: str | None,
    tag: str | None,
    prefix: str | None,
    limit: int | None,
    after: str | None,
    subgraphs: bool,
    workspace: str | None,
) -> None:
    """List threads.

    Sorted by name, each with its status and what it waits for, including file runs. A thread
    recorded as running is shown as lost unless its process is known to be alive.
    """
    from milecastle.cli.file_runs import open_source

    store, files = open_source(session, workspace)
    found: list[ThreadLine] = []
    if store is not None:
        lists = session.listed(store)
        listed = thread_lines(
            lists,
            session.tenant,
            status=status,
            graph=graph,
            tag=tag,
            prefix=prefix,
            after=after,
            subgraphs=subgraphs,
        )
        found += with_tags(lists, session.tenant, islice(listed, limit))
    if files is not None and status != LOST and tag is None:
        others = [
            line
            for line in files.threads(cast("RunStatus | None", status), after)
            if graph in (None, line.graph) and line.thread.startswith(prefix or "")
        ]
        found = sorted([*found, *others], key=lambda line: line.thread)
    lines = tuple(found[:limit])
    if session.as_json:
        print_document(LsDocument(tenant=session.tenant, threads=lines))
    elif not lines:
        say(f"tenant '{session.tenant}' has no matching threads in {session.describe_store()}")
    else:
        _print(lines)


def _print(lines: Sequence[ThreadLine]) -> None:
    head = ["THREAD", "STATUS", "WAITS FOR", "GRAPH", "STARTED", "RUN", "KIND"]
    rows = [
        [t.thread, t.status, _waits_for(t), t.graph or "-", seconds(t.started_at), t.run_id, t.kind]
        for t in lines
    ]
    if any(line.tags for line in lines):
        head.append("TAGS")
        rows = [[*row, ", ".join(t.tags) or "-"] for row, t in zip(rows, lines, strict=True)]
    print_table(head, rows)


def _waits_for(line: ThreadLine) -> str:
    if line.reason:
        return f"resume: {line.reason}"
    parts = [counted(line.questions, "question")] if line.questions else []
    return ", ".join([*parts, *([seconds(line.wake_at)] if line.wake_at else [])]) or "-"
