from __future__ import annotations

import click

from milecastle.app.runs.calls import Call, if_taken
from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.running import read_config, run_and_exit, run_options, take_over_option
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.errors import InvalidRequest, ResumeRefused
from milecastle.model.policies import ExecutionOptions


@click.command("resume")
@click.argument("thread", shell_complete=complete_threads)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Resume even if the graph changed and the state does not match; the history records it.",
)
@app_option
@take_over_option
@run_options
@verb
def command(
    session: Session,
    thread: str,
    accept_changes: bool,
    take_over: bool,
    config: str | None,
    max_steps: int | None,
    timeout: float | None,
    trace: bool,
) -> None:
    """Resume a thread from its last checkpoint.

    However its run ended: a crash, a failure, an interrupt. Exit code 5 means that it was refused.
    """
    node_config = read_config(config)
    app = session.app()
    if not app.has_store:
        raise click.UsageError("resuming needs a store: set one with --store")
    try:
        key = find_thread(app.store, session.tenant, thread)
    except InvalidRequest as error:
        raise ResumeRefused(thread, [error.message]) from None
    call = Call(
        thread=key,
        options=ExecutionOptions(max_steps=max_steps, timeout=timeout),
        config=node_config,
        mode="events",
        if_exists=if_taken(take_over),
        accept_changes=accept_changes,
    )
    run_and_exit(session, call, trace=trace)
