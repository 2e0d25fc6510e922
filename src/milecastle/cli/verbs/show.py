"""``milecastle show``: one checkpoint, its run, its state."""

from __future__ import annotations

import click

from milecastle.cli.addressing import find_checkpoint
from milecastle.cli.completing import complete_threads
from milecastle.cli.decoding import Decoded, decode, read_chain
from milecastle.cli.documents import ShowDocument
from milecastle.cli.lines import (
    checkpoint_line,
    names,
    print_facts,
    print_failure,
    print_state,
    run_line,
)
from milecastle.cli.printing import print_document, print_lines, say
from milecastle.cli.questions import question_lines, question_text
from milecastle.cli.session import Session
from milecastle.cli.values import plain
from milecastle.cli.verb import app_option, verb
from milecastle.model.checkpoint import CheckpointMetadata

__all__ = ["command"]


@click.command("show")
@click.argument("address", metavar="THREAD[@CHECKPOINT]", shell_complete=complete_threads)
@app_option
@verb
def command(session: Session, address: str) -> None:
    """Show a checkpoint with its state.

    demo is the head, demo@2 the checkpoint with seq 2, demo@019a... the one whose id begins so.
    """
    store = session.store()
    place = find_checkpoint(store, session.tenant, address)
    chain = read_chain(session, place.key, place.seq)
    decoded = decode(session, place.key, chain)
    entry = chain.entries[-1]
    run = store.run(place.key, entry.run_id)
    status = "completed" if not entry.next and not entry.route else run.status if run else "-"
    document = ShowDocument(
        tenant=session.tenant,
        thread=place.key.thread,
        checkpoint=checkpoint_line(CheckpointMetadata.of(place.key, entry)),
        status="interrupted" if status == "completed" and entry.next else status,
        run=run_line(run, store.failure(place.key, run.run_id)) if run else None,
        state=plain(decoded.values),
        questions=question_lines(decoded.interrupts),
        undecoded=decoded.undecoded,
    )
    if session.as_json:
        print_document(document)
    else:
        _print(document, decoded)


def _print(shown: ShowDocument, decoded: Decoded) -> None:
    at = shown.checkpoint
    facts = {
        "thread": shown.thread,
        "checkpoint": f"{at.seq} ({at.id})",
        "written by": f"{at.source}, step {at.step}, nodes {names(at.nodes)}",
        "next": names(at.next),
        "status": shown.status,
        "time": at.timestamp,
        "run": at.run_id,
    }
    print_facts({**facts, "note": at.note} if at.note else facts)
    if shown.run and shown.run.failure:
        print_failure(shown.run.failure)
    if shown.status == "running":
        say(f"it is at work, or its process died: then `milecastle resume {shown.thread}` goes on")
    print_lines(map(question_text, shown.questions))
    print_lines(["state"])
    print_state(decoded.values)
    for channel, reason in decoded.undecoded.items():
        say(f"'{channel}' is left out: {reason}; --app module:attribute brings the code")
