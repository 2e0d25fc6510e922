from __future__ import annotations

import click

from milecastle.cli.addressing import command_text, find_checkpoint, has_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.printing import (
    print_document,
    print_facts,
    print_failure,
    print_lines,
    print_state,
    say,
    terminal_width,
)
from milecastle.cli.questions import question_text
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb, workspace_option
from milecastle.errors import InvalidRequest
from milecastle.views.decoding import Decoded
from milecastle.views.documents import ShowDocument
from milecastle.views.lines import names
from milecastle.views.showing import read_shown, show_document


@click.command("show")
@click.argument("address", metavar="THREAD[@CHECKPOINT]", shell_complete=complete_threads)
@click.option("--full", is_flag=True, help="Do not truncate lines at the width of the terminal.")
@workspace_option
@app_option
@verb
def command(session: Session, address: str, full: bool, workspace: str | None) -> None:
    """Show a checkpoint with its state.

    demo is the head, demo@2 the checkpoint with seq 2, demo@019a... the one whose id starts with
    that. For file runs, demo is the newest and demo@019a... the one whose id starts with that.
    Without --app, objects of your classes are shown by their type's name and their fields.
    """
    from milecastle.cli.file_runs import find_file_run, no_thread, open_source, print_file_run

    store, files = open_source(session, workspace)
    if files is not None and not (store and has_thread(store, session.key(address))):
        run = find_file_run(files, address)
        if run is not None:
            print_file_run(session, files.show_document(run))
            return
    if store is None:
        raise no_thread(session, address)
    place = find_checkpoint(store, session.tenant, address)
    shown = read_shown(store, place.key, None if place.is_head else place.seq)
    if shown is None:
        raise InvalidRequest(f"thread '{place.key.thread}' was deleted, or pruned, meanwhile")
    decoded = session.decode(place.key, shown.chain)
    document = show_document(store, place.key, shown, decoded)
    if session.as_json:
        print_document(document)
    else:
        _print(document, decoded, None if full else terminal_width())


def _print(shown: ShowDocument, decoded: Decoded, width: int | None) -> None:
    at = shown.checkpoint
    facts = {
        "thread": shown.thread,
        "checkpoint": f"{at.seq} ({at.id})",
        "written by": f"{at.source}, step {at.step}, nodes {names(at.nodes)}",
        "next": names(at.next),
        "status": f"{shown.status}: {shown.reason}" if shown.reason else shown.status,
        "time": at.timestamp,
        "run": at.run_id,
    }
    if shown.tags:
        facts["tags"] = ", ".join(shown.tags)
    if shown.tasks:
        counts = (f"{line.node} {line.done} of {line.total}" for line in shown.tasks)
        facts["tasks done"] = ", ".join(counts)
    print_facts({**facts, "note": at.note} if at.note else facts)
    if shown.run and shown.run.failure:
        print_failure(shown.run.failure)
    if shown.reason:
        say(f"`{command_text('resume', shown.thread)}` continues it")
    cut = print_lines(map(question_text, shown.questions), width)
    print_lines(["state"])
    cut = print_state(decoded.values, width) or cut
    if cut:
        say(
            f"lines are truncated at {width} columns, the width of the terminal: --full shows "
            "them in full"
        )
    for channel, reason in decoded.undecoded.items():
        say(f"'{channel}' is omitted: {reason}; pass the graph's code with --app module:attribute")
