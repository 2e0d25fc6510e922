"""``milecastle workers``: the workers of a store."""

from __future__ import annotations

from collections.abc import Iterator

import click

from milecastle.cli.printing import print_document, print_lines, print_table, say
from milecastle.cli.session import Session
from milecastle.cli.sharing import shared_store
from milecastle.cli.verb import app_option, verb
from milecastle.ports.claims import ClaimStore, system_time
from milecastle.views.documents import HeldLine, WorkersDocument
from milecastle.views.lines import held_line, held_row, worker_line, worker_row

__all__ = ["command"]


@click.command("workers")
@app_option
@click.option("--threads", is_flag=True, help="Also list the threads that they run.")
@click.option(
    "--stuck-after",
    type=float,
    default=600.0,
    metavar="SECONDS",
    help="Without a checkpoint for so long, a running thread is shown as long; 600 if not set.",
)
@verb
def command(session: Session, threads: bool, stuck_after: float) -> None:
    """List the workers of a store, with what they run and when they were last heard of."""
    store = shared_store(session)
    lines = tuple(worker_line(worker) for worker in store.workers())
    held = tuple(_held(store, stuck_after)) if threads else ()
    if session.as_json:
        print_document(WorkersDocument(workers=lines, threads=held))
        return
    if not lines:
        say(f"no worker serves {session.describe_store()}")
        return
    head = ["WORKER", "HOST", "PID", "LANES", "RUNNING", "SILENT", "STARTED"]
    print_table(head, [worker_row(line) for line in lines])
    if held:
        print_lines([""])
        print_table(
            ["THREAD", "TENANT", "NODES", "SINCE", "STATE", "WORKER"],
            [held_row(line) for line in held],
        )


def _held(store: ClaimStore, stuck_after: float) -> Iterator[HeldLine]:
    """What the workers have; a thread that rests meanwhile is left out."""
    for worker in store.workers():
        for key in store.claimed(worker.id):
            head = store.head(key)
            if head is not None:
                yield held_line(worker, key, head, system_time(), stuck_after)
