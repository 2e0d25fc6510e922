from __future__ import annotations

import click
import msgspec

from milecastle.cli.addressing import find_checkpoint
from milecastle.cli.printing import print_document, print_lines, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_argument, verb
from milecastle.draw import draw_mermaid, draw_svg, draw_text, notes_of
from milecastle.errors import InvalidRequest
from milecastle.model.manifest import Manifest
from milecastle.views.documents import GraphDocument

_FORMS = {"svg": draw_svg, "mermaid": draw_mermaid, "text": draw_text}


@click.command("graph")
@app_argument
@click.option("--svg", "form", flag_value="svg", help="SVG.")
@click.option("--mermaid", "form", flag_value="mermaid", help="Mermaid text.")
@click.option(
    "--text", "form", flag_value="text", default="text", help="Text for a terminal (default)."
)
@click.option(
    "--thread", metavar="THREAD[@CHECKPOINT]", help="The graph that this thread was saved with."
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to this file."
)
@verb
def command(session: Session, form: str | None, thread: str | None, output: str | None) -> None:
    """Draw a graph.

    From its code, or with --thread from the store, as it was when the thread was saved.
    """
    form = form or "text"
    if thread is None:
        graph = session.app().graph
        name, manifest, notes = graph.name, graph.manifest, notes_of(graph)
    else:
        (name, manifest), notes = _stored(session, thread), None
    drawing = _FORMS[form](manifest, title=name, notes=notes)
    if output:
        from pathlib import Path

        Path(output).write_text(drawing, encoding="utf-8")
        say(f"wrote {output}")
    if session.as_json:
        print_document(
            GraphDocument(
                graph=name,
                fingerprint=manifest.fingerprint,
                form=form,
                drawing=drawing,
                manifest=msgspec.to_builtins(manifest),
            )
        )
    elif not output:
        print_lines(drawing.rstrip("\n").split("\n"))


def _stored(session: Session, thread: str) -> tuple[str, Manifest]:
    store = session.store()
    place = find_checkpoint(store, session.tenant, thread)
    entry = next(iter(store.history(place.key, limit=1, before=place.seq + 1)))
    stored = store.manifest(place.key, entry.fingerprint)
    if stored is None:
        raise InvalidRequest(f"no graph is recorded for {place}")
    run = store.run(place.key, entry.run_id)
    return run.graph if run else place.key.thread, Manifest.from_bytes(stored)
