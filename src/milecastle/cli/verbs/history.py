from __future__ import annotations

import click

from milecastle.app.threads.archived import readable_history
from milecastle.cli.addressing import find_thread, has_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.printing import say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb, workspace_option
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.views.documents import HistoryDocument
from milecastle.views.lines import checkpoint_line, names, seconds


@click.command("history")
@click.argument("thread", shell_complete=complete_threads)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number to list.")
@workspace_option
@app_option
@verb
def command(session: Session, thread: str, limit: int | None, workspace: str | None) -> None:
    """List a thread's checkpoints, newest first.

    No state is decoded. A parent that is not on the next line shows where a branch starts. For file
    runs, each completed node is listed.
    """
    from milecastle.cli.file_runs import no_thread, open_source, print_file_history

    store, files = open_source(session, workspace)
    is_stored = store is not None and has_thread(store, session.key(thread))
    if files is not None and not is_stored and files.find(thread):
        print_file_history(session, thread, files.history(thread, limit))
        return
    if store is None:
        raise no_thread(session, thread)
    key = find_thread(store, session.tenant, thread)
    entries, missing = readable_history(session.listed(store, key), key, limit=limit)
    lines = tuple(checkpoint_line(CheckpointMetadata.of(key, entry)) for entry in entries)
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
    document = HistoryDocument(tenant=key.tenant, thread=key.thread, checkpoints=lines)
    head = ["SEQ", "SOURCE", "NODES", "NEXT", "PARENT", "TIME", "ID", "NOTE"]
    session.report_table(document, head, rows)
    if missing:
        say(str(missing))
