"""``milecastle ls``: the threads of a tenant."""

from __future__ import annotations

from functools import partial
from typing import get_args

import click

from milecastle.app.children import own_threads
from milecastle.cli.documents import LsDocument
from milecastle.cli.lines import seconds, thread_line
from milecastle.cli.printing import print_document, print_table, say, styled_status
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.model.run import RunStatus

__all__ = ["command"]


@click.command("ls")
@click.option("--status", type=click.Choice(get_args(RunStatus)), help="Only these.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@click.option("--after", metavar="THREAD", help="Only threads after this one, by name.")
@click.option("--subgraphs", is_flag=True, help="Also the threads of subgraphs.")
@app_option
@verb
def command(
    session: Session,
    status: RunStatus | None,
    limit: int | None,
    after: str | None,
    subgraphs: bool,
) -> None:
    """List threads.

    Each with what its newest run came to, by name.
    """
    listing = session.store().threads if subgraphs else partial(own_threads, session.store())
    found = listing(session.tenant, status=status, limit=limit, after=after)
    lines = tuple(map(thread_line, found))
    if session.as_json:
        print_document(LsDocument(tenant=session.tenant, threads=lines))
    elif not lines:
        say(f"tenant '{session.tenant}' has no such threads in {session.describe_store()}")
    else:
        rows = [
            [t.thread, styled_status(t.status), t.graph or "-", seconds(t.started_at), t.run_id]
            for t in lines
        ]
        print_table(["THREAD", "STATUS", "GRAPH", "STARTED", "RUN"], rows)
