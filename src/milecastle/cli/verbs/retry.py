from __future__ import annotations

import click

from milecastle.cli.completing import complete_threads
from milecastle.cli.running import config_option, print_handle, read_config
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, stored_thread, verb


@click.command("retry")
@click.argument("thread", shell_complete=complete_threads)
@click.option("--delay", type=float, default=0.0, metavar="SECONDS", help="Start it so much later.")
@config_option
@app_option
@verb
def command(session: Session, thread: str, delay: float, config: str | None) -> None:
    """Queue a thread whose run failed, was lost or was cancelled for the workers."""
    node_config = read_config(config)
    app, key = stored_thread(session, thread)
    print_handle(session, app.retry(key, delay=delay, config=node_config))
