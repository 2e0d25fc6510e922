from __future__ import annotations

import click

from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.session import Session, keepers_of, with_keys
from milecastle.cli.verb import app_option, verb
from milecastle.views.documents import CancelDocument


@click.command("cancel")
@click.argument("thread", shell_complete=complete_threads)
@app_option
@verb
def command(session: Session, thread: str) -> None:
    """Close the unfinished run of a thread.

    It becomes cancelled, with a failure record. A process that still drives it stops at its next
    commit. Committed steps are saved: resume continues it, and run --discard starts with another
    input.
    """
    key = find_thread(session.store(), session.tenant, thread)
    cancelled = with_keys(keepers_of(session), lambda keeper: keeper.cancel(key))
    document = CancelDocument(tenant=key.tenant, thread=key.thread, cancelled=cancelled)
    what = "cancelled" if cancelled else "nothing to cancel: it has no unfinished run"
    session.report(document, [f"thread {key.thread}: {what}"])
