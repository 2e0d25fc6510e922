from __future__ import annotations

import re

import click

from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session, masked
from milecastle.cli.verb import verb
from milecastle.stores.opening import find_shards
from milecastle.views.documents import MoveLine, ShardsDocument


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> range | None:
    if value is None:
        return None
    found = re.fullmatch("([0-9]{1,4})(?:-([0-9]{1,4}))?", value)
    if not found:
        raise click.BadParameter("write a shard or a range: 17 or 0-99")
    first = int(found[1])
    return range(first, int(found[2] or first) + 1)


@click.command("shards")
@click.argument("action", metavar="init|plan|move", type=click.Choice(["init", "plan", "move"]))
@click.argument("shards", metavar="[SHARDS]", required=False, callback=_numbers)
@click.option("--to", metavar="NAME", help="Move them to the database of this name.")
@click.option(
    "--sample",
    metavar="SECONDS",
    type=click.FloatRange(0.0, 3600.0),
    default=10.0,
    show_default=True,
    help="Measure for so long what is written to each shard; 0: plan by sizes alone.",
)
@verb
def command(
    session: Session, action: str, shards: range | None, to: str | None, sample: float
) -> None:
    """Initialise the databases of a map, and move shards between them.

    init creates the tables, and writes into each database which shards it has. Stop everything
    that writes to these databases before. It may be run again: it does what is missing, and in a
    map that is in use adds databases that have no shards yet.

    move SHARDS --to NAME moves a shard (17) or several (0-99) while their threads run. If it is
    interrupted, run it again. plan proposes moves that make databases about equally large and busy.
    """
    found = session.url()
    if found is None:
        raise click.UsageError("no map given: use --store shards.toml or MILECASTLE_STORE")
    if (action == "move") != (shards is not None and to is not None):
        raise click.UsageError("write: shards move SHARDS --to NAME; init and plan take neither")
    store, databases = masked(found.value), find_shards(found.value)
    if action == "init":
        written = tuple(databases.initialise())
        lines = [f"initialised {name}" for name in written] or ["every database is initialised"]
        session.report(ShardsDocument(store=store, initialised=written), lines)
    elif action == "plan":
        moves = databases.plan(sample)
        planned = tuple(
            MoveLine(shard=one.shard, to=one.to, entries=one.entries, rate=one.rate)
            for one in moves
        )
        lines = [f"milecastle shards move {one.shard} --to {one.to}" for one in moves]
        lines = lines or ["the databases are about equally large and busy"]
        session.report(ShardsDocument(store=store, planned=planned), lines)
    elif shards is not None and to is not None:
        moved: list[MoveLine] = []
        for shard, was_elsewhere in databases.move(shards, to):
            if was_elsewhere:
                moved.append(MoveLine(shard=shard, to=to))
            if not session.as_json:
                where = "is now" if was_elsewhere else "was already"
                print_lines([f"shard {shard} {where} in {to}"])
        if session.as_json:
            print_document(ShardsDocument(store=store, moved=tuple(moved)))
