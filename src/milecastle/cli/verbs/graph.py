"""``milecastle graph``: a drawing of a graph, of the code or of what a thread was saved by."""

from __future__ import annotations

import click
import msgspec

from milecastle.cli.addressing import find_checkpoint
from milecastle.cli.documents import GraphDocument
from milecastle.cli.printing import print_document, say
from milecastle.cli.session import Session
from milecastle.cli.verb import verb
from milecastle.errors import InvalidRequest
from milecastle.graph.draw import draw_mermaid, draw_svg, draw_text
from milecastle.model.manifest import Manifest

__all__ = ["command"]

_FORMS = {"svg": draw_svg, "mermaid": draw_mermaid, "text": draw_text}


@click.command("graph")
@click.argument("reference", metavar="[MODULE:ATTRIBUTE]", required=False)
@click.option("--svg", "form", flag_value="svg", help="SVG.")
@click.option("--mermaid", "form", flag_value="mermaid", help="Mermaid text.")
@click.option("--text", "form", flag_value="text", default="text", help="Terminal text (usual).")
@click.option("--thread", metavar="THREAD[@CHECKPOINT]", help="What this thread was saved by.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="A file.")
@verb
def command(
    session: Session,
    reference: str | None,
    form: str | None,
    thread: str | None,
    output: str | None,
) -> None:
    """Draw a graph.

    From its code, or with --thread from the store, as it was when the thread was saved.
    """
    form = form or "text"
    if thread is None:
        graph = session.app(reference).graph
        name, manifest = graph.name, graph.manifest
    else:
        name, manifest = _stored(session, thread)
    drawing = _FORMS[form](manifest, title=name)
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
        click.echo(drawing.rstrip("\n"))


def _stored(session: Session, thread: str) -> tuple[str, Manifest]:
    store = session.store()
    place = find_checkpoint(store, session.tenant, thread)
    entry = next(iter(store.history(place.key, limit=1, before=place.seq + 1)))
    stored = store.manifest(place.key, entry.fingerprint)
    if stored is None:
        raise InvalidRequest(f"no graph is on record for {place}")
    run = store.run(place.key, entry.run_id)
    return run.graph if run else place.key.thread, Manifest.from_bytes(stored)
