"""``milecastle restore``: move a thread's archived checkpoints back."""

from __future__ import annotations

import click

from milecastle.app.upkeep.archiving import restore_thread
from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.printing import counted
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.views.documents import RestoreDocument


@click.command("restore")
@click.argument("thread", shell_complete=complete_threads)
@app_option
@verb
def command(session: Session, thread: str) -> None:
    """Move a thread's archived checkpoints back into the store.

    They are read like others while they are archived: this only makes it faster. Object storage
    must be set: MILECASTLE_OBJECTS. Exit code 6 means that the thread was written to meanwhile:
    what was not moved is still archived.
    """
    store = session.store()
    key = find_thread(store, session.tenant, thread)
    moved = restore_thread(store, key)
    document = RestoreDocument(tenant=key.tenant, thread=key.thread, restored=moved)
    session.report(document, [f"thread {key.thread}: {counted(moved, 'checkpoint')} restored"])
