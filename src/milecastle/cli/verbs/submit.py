from __future__ import annotations

import click

from milecastle.app.runs.calls import IfBusy
from milecastle.cli.running import (
    config_option,
    input_options,
    print_handle,
    read_config,
    read_input,
)
from milecastle.cli.session import Session
from milecastle.cli.verb import app_argument, stored_app, verb
from milecastle.views.values import fitted


@click.command("submit")
@app_argument
@input_options
@config_option
@click.option("--delay", type=float, default=0.0, metavar="SECONDS", help="Start it so much later.")
@click.option(
    "--priority",
    type=click.IntRange(-100, 100),
    default=0,
    metavar="N",
    help="Higher ones of the same tenant and graph start first; 0 if not set.",
)
@click.option(
    "--limit-key",
    metavar="NAME=VALUE",
    help="Limits by key count the run under this value: customer=c7.",
)
@click.option(
    "--if-busy",
    type=click.Choice(["reject", "queue", "cancel"]),
    default="reject",
    help="What to do if another run of the thread has not ended.",
)
@verb
def command(
    session: Session,
    thread: str | None,
    given: str | None,
    key: str | None,
    again: bool,
    tags: tuple[str, ...],
    config: str | None,
    delay: float,
    priority: int,
    limit_key: str | None,
    if_busy: IfBusy,
) -> None:
    """Queue a run for the workers, and return at once.

    Submitted again with the same input or key, it finds the run that it started.
    """
    values, node_config = read_input(given), read_config(config)
    session.app()
    app, _ = stored_app(session)
    handle = app.submit(
        fitted(app.graph.schema, values, {}),
        None if thread is None else session.key(thread),
        key=key,
        again=again,
        delay=delay,
        priority=priority,
        if_busy=if_busy,
        tags=tags,
        keys=None if limit_key is None else _keys(limit_key),
        config=node_config,
    )
    print_handle(session, handle)


def _keys(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError("--limit-key takes a name and a value: customer=c7")
    return {name: value}
