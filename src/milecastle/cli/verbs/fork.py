from __future__ import annotations

import click

from milecastle.cli.addressing import find_checkpoint
from milecastle.cli.completing import complete_threads
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, print_written, stored_app, verb


@click.command("fork")
@click.argument("address", metavar="THREAD[@CHECKPOINT]", shell_complete=complete_threads)
@click.option(
    "--as", "as_thread", metavar="NAME", help="Create the branch as a thread with this name."
)
@app_option
@verb
def command(session: Session, address: str, as_thread: str | None) -> None:
    """Go back to a checkpoint, in the same thread or in a new one.

    Nothing is lost: the branch is a new checkpoint. With --as the old thread is unchanged.
    """
    app, store = stored_app(session)
    place = find_checkpoint(store, session.tenant, address)
    target = session.key(as_thread) if as_thread else None
    written = app.fork(place.key, place.seq, target)
    print_written(session, written, f"forked {place} to")
