from __future__ import annotations

import click

from milecastle.app.runs.submission import require_shared
from milecastle.cli.printing import print_document, print_lines, print_table, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_argument, verb
from milecastle.support.printable import quoted
from milecastle.views.fleet import STUCK_AFTER, workers_document
from milecastle.views.lines import held_row, worker_row


@click.command("workers")
@app_argument
@click.option("--threads", is_flag=True, help="Also list the threads that they run.")
@click.option(
    "--stuck-after",
    type=float,
    default=STUCK_AFTER,
    metavar="SECONDS",
    help="Without a checkpoint for so long, a running thread is shown as long; 600 if not set.",
)
@verb
def command(session: Session, threads: bool, stuck_after: float) -> None:
    """List the workers of a store, with what they run and their last heartbeat."""
    store = require_shared(session.store())
    document = workers_document(store, threads=threads, stuck_after=stuck_after)
    lines, held = document.workers, document.threads
    if session.as_json:
        print_document(document)
        return
    if not lines:
        say(f"no worker serves {session.describe_store()}")
        return
    head = ["WORKER", "HOST", "PID", "LANES", "RUNNING", "SILENT", "STARTED"]
    rows = [worker_row(line) for line in lines]
    if any(line.databases for line in lines):
        head.append("DATABASES")
        rows = [[*row, ", ".join(line.databases)] for row, line in zip(rows, lines, strict=True)]
    print_table(head, rows)
    if document.unserved:
        print_lines([f"no running worker serves database {quoted(*document.unserved)}"])
    if held:
        print_lines([""])
        head = ["THREAD", "TENANT", "NODES", "SINCE", "STATE", "WORKER"]
        print_table(head, [held_row(line) for line in held])
