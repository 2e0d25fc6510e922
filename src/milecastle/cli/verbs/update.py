from __future__ import annotations

import click

from milecastle.cli.addressing import find_checkpoint
from milecastle.cli.completing import complete_threads
from milecastle.cli.questions import parse_loosely
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, print_written, stored_app, verb
from milecastle.views.values import fitted


@click.command("update")
@click.argument("address", metavar="THREAD[@CHECKPOINT]", shell_complete=complete_threads)
@click.option(
    "--set",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    required=True,
    help="JSON if valid, else text. A channel with a reducer merges the value into its own.",
)
@app_option
@verb
def command(session: Session, address: str, given: tuple[str, ...]) -> None:
    """Change the state of a thread by adding a checkpoint.

    On top of the head, or with @ as a branch from an older checkpoint. The next nodes do not
    change.
    """
    typed: dict[str, str] = {}
    for text in given:
        name, found, value = text.partition("=")
        if not found or not name:
            raise click.UsageError(
                f"--set takes KEY=VALUE, such as --set topic=trails, not '{text}'"
            )
        typed[name] = value
    app, store = stored_app(session)
    place = find_checkpoint(store, session.tenant, address)
    values = {name: parse_loosely(text) for name, text in typed.items()}
    update = fitted(app.graph.schema, values, typed)
    written = app.update_state(place.key, update, place.seq)
    print_written(session, written, f"updated {place} to")
