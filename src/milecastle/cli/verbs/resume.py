"""``milecastle resume``: a thread goes on from its head."""

from __future__ import annotations

import click

from milecastle.app.launching import Wish
from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.running import finish, options_of, run_options
from milecastle.cli.session import Session
from milecastle.cli.values import parse_object
from milecastle.cli.verb import app_option, verb
from milecastle.errors import InvalidRequest, ResumeRefused

__all__ = ["command"]


@click.command("resume")
@click.argument("thread", shell_complete=complete_threads)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on though the graph changed and the state does not fit; the history says so.",
)
@app_option
@run_options
@verb
def command(
    session: Session,
    thread: str,
    accept_changes: bool,
    config: str | None,
    max_steps: int | None,
    timeout: float | None,
    trace: bool,
) -> None:
    """Go on with a thread from its last checkpoint.

    Whatever ended its run: a crash, a failure, an interrupt. Exit code 5 says that it was refused.
    """
    node_config = parse_object(config, "--config") if config else None
    app = session.app()
    if app.store is None:
        raise click.UsageError("nothing can be resumed without a store: name one with --store")
    try:
        key = find_thread(app.store, session.tenant, thread)
    except InvalidRequest as error:
        raise ResumeRefused(thread, [error.message]) from None
    with session.user_code():
        call = app.begin(
            Wish(
                thread=key,
                options=options_of(max_steps, timeout),
                config=node_config,
                mode="events",
                accept_changes=accept_changes,
            )
        )
    finish(session, call, trace=trace, reference=session.typed_app)
