from __future__ import annotations

import sys
from itertools import islice

import click

from milecastle.app.threads.children import own_threads
from milecastle.app.with_store import with_store
from milecastle.cli.exits import OK, REFUSED
from milecastle.cli.printing import ProgressReport, counted, print_document, print_lines
from milecastle.cli.session import Session
from milecastle.cli.verb import app_argument, verb
from milecastle.views.documents import ReplayDocument, ReplayLine
from milecastle.views.versions import replay_line


@click.command("replay")
@app_argument
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=200,
    metavar="N",
    help="Maximum number of threads; 200 if not set.",
)
@click.option("--tag", metavar="TAG", help="Only threads that have this tag.")
@click.option(
    "--node",
    "nodes",
    metavar="NODE",
    multiple=True,
    help="A node of a graph to call too, as it has no side effects; repeatable.",
)
@verb
def command(session: Session, sample: int, tag: str | None, nodes: tuple[str, ...]) -> None:
    """Compare recorded threads with the current code, without writing or calling steps.

    A flow runs against its recorded calls; a graph's edges are evaluated on the recorded states,
    and the nodes given with --node are called on them. Exit code 5: the code makes other calls,
    takes another path, or writes something else.
    """
    app = session.app()
    store = app.store if app.has_store else session.store()
    if not app.has_store:
        app = with_store(app, store)
    progress, found = ProgressReport("replaying threads"), list[ReplayLine]()
    own = (
        info for info in own_threads(store, session.tenant, tag=tag) if info.graph == app.graph.name
    )
    for info in islice(own, sample):
        progress.at(info.key.thread)
        with session.user_code():
            found.append(replay_line(app, info, nodes))
    differing = [one for one in found if one.verdict == "differs"]
    if session.as_json:
        print_document(
            ReplayDocument(
                app=session.app_reference or "",
                ok=not differing,
                threads=tuple(found),
            )
        )
    else:
        print_lines(f"{one.thread}: {one.detail}" for one in differing)
        same = sum(one.verdict == "same" for one in found)
        others = f"{len(found) - same - len(differing)} continue after the record"
        summary = f"{same} the same, {others}, {len(differing)} differ"
        print_lines([f"{counted(len(found), 'thread')} replayed: {summary}"])
    sys.exit(REFUSED if differing else OK)
