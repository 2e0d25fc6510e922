from __future__ import annotations

import click

from milecastle.app.upkeep.removing import delete_thread
from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.views.documents import DeleteDocument


@click.command("delete")
@click.argument("thread", shell_complete=complete_threads)
@click.option("--take-over", is_flag=True, help="Even while a running process drives it.")
@app_option
@verb
def command(session: Session, thread: str, take_over: bool) -> None:
    """Delete a thread, its runs and its subgraphs.

    The key of an encrypted thread is deleted too, if the keys are given. Exit code 6 means that it
    is in progress, or was written to meanwhile: then nothing was deleted.
    """
    store = session.store()
    key = find_thread(store, session.tenant, thread)
    deleted = delete_thread(store, key, session.keyring(), take_over=take_over)
    document = DeleteDocument(tenant=key.tenant, thread=key.thread, deleted=deleted)
    session.report(document, [f"thread {key.thread}: {'deleted' if deleted else 'not found'}"])
