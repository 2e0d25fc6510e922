"""``milecastle history``: a thread's checkpoints, without any state."""

from __future__ import annotations

import click

from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.documents import HistoryDocument
from milecastle.cli.lines import checkpoint_line, names, seconds
from milecastle.cli.printing import print_document, print_table
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.model.checkpoint import CheckpointMetadata

__all__ = ["command"]


@click.command("history")
@click.argument("thread", shell_complete=complete_threads)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@app_option
@verb
def command(session: Session, thread: str, limit: int | None) -> None:
    """List a thread's checkpoints, newest first.

    No state is decoded. A parent that is not the line below shows where a branch goes off.
    """
    store = session.store()
    key = find_thread(store, session.tenant, thread)
    entries = store.history(key, limit=limit)
    lines = tuple(checkpoint_line(CheckpointMetadata.of(key, entry)) for entry in entries)
    if session.as_json:
        document = HistoryDocument(tenant=key.tenant, thread=key.thread, checkpoints=lines)
        print_document(document)
        return
    by_id = {line.id: line.seq for line in lines}
    rows = [
        [
            str(line.seq),
            line.source,
            names(line.nodes),
            names(line.next),
            str(by_id.get(line.parent_id or "", "-")),
            seconds(line.timestamp),
            line.id,
            line.note,
        ]
        for line in lines
    ]
    print_table(["SEQ", "SOURCE", "NODES", "NEXT", "PARENT", "TIME", "ID", "NOTE"], rows)
