from __future__ import annotations

import click

from milecastle.app.with_store import with_store
from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.views.reasons import why_document


@click.command("why")
@click.argument("thread", shell_complete=complete_threads)
@app_option
@verb
def command(session: Session, thread: str) -> None:
    """Explain why a thread does not run: every reason, and what to do.

    Not due yet, no worker for its version, paused, at a limit, behind another run, waits for an
    answer, its worker is silent, held after losses, failed, or ended. With --app also why that code
    would refuse it.
    """
    app = session.app() if session.named_app else None
    store = session.store()
    key = find_thread(store, session.tenant, thread)
    fit = None
    if app is not None:
        with session.user_code():
            fit = (app if app.has_store else with_store(app, store)).compatibility(key)
    found = why_document(store, key, fit)
    lines = [f"  {one.text}" + (f" ({one.advice})" if one.advice else "") for one in found.reasons]
    session.report(found, [f"thread {found.thread}: {found.status}", *lines])
