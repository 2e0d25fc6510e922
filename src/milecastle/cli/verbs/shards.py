"""``milecastle shards``: initialise the databases of a map."""

from __future__ import annotations

import click

from milecastle.app.opening import init_shards
from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session, masked
from milecastle.cli.verb import verb
from milecastle.views.documents import ShardsDocument

__all__ = ["command"]


@click.command("shards")
@click.argument("action", metavar="init", type=click.Choice(["init"]))
@verb
def command(session: Session, action: str) -> None:
    """Initialise the databases of a map.

    It creates the tables, and writes into each database which shards it has. Stop everything that
    writes to these databases before. It may be run again: it does what is missing, and in a map
    that is in use adds databases that have no shards yet.
    """
    found = session.url()
    if found is None:
        raise click.UsageError("no map given: use --store shards.toml or MILECASTLE_STORE")
    written = tuple(init_shards(found.value))
    if session.as_json:
        print_document(ShardsDocument(store=masked(found.value), initialised=written))
        return
    print_lines([f"initialised {name}" for name in written] or ["every database is initialised"])
