"""``milecastle update``: a checkpoint by hand."""

from __future__ import annotations

import click

from milecastle.cli.addressing import find_checkpoint
from milecastle.cli.completing import complete_threads
from milecastle.cli.session import Session
from milecastle.cli.values import fitted, parse_loosely
from milecastle.cli.verb import app_option, verb
from milecastle.cli.writing import print_written, stored_app

__all__ = ["command"]


@click.command("update")
@click.argument("address", metavar="THREAD[@CHECKPOINT]", shell_complete=complete_threads)
@click.option(
    "--set",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    required=True,
    help="JSON if it is that, else text. A channel with a reducer gets the value added.",
)
@app_option
@verb
def command(session: Session, address: str, given: tuple[str, ...]) -> None:
    """Change the state of a thread by a checkpoint of its own.

    On top of the head, or with @ as a branch from an older checkpoint. What runs next stays.
    """
    typed = dict(_pair(text) for text in given)
    app, store = stored_app(session)
    place = find_checkpoint(store, session.tenant, address)
    values = {name: parse_loosely(text) for name, text in typed.items()}
    update = fitted(app.graph.schema, values, typed)
    written = app.update_state(place.key, update, place.seq)
    print_written(session, written, f"updated {place} to")


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.UsageError(f"--set takes KEY=VALUE, such as --set topic=trails, not '{text}'")
    return name, value
