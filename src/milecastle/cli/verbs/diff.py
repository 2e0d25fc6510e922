from __future__ import annotations

import click

from milecastle.app.threads.difference import Change
from milecastle.cli.addressing import find_checkpoint
from milecastle.cli.completing import complete_threads
from milecastle.cli.printing import print_document, print_lines, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.views.decoding import read_chain
from milecastle.views.documents import DiffDocument
from milecastle.views.showing import change_line, changes_between
from milecastle.views.values import as_json


@click.command("diff")
@click.argument("a", metavar="THREAD@CHECKPOINT", shell_complete=complete_threads)
@click.argument("b", metavar="[THREAD[@CHECKPOINT]]", required=False)
@app_option
@verb
def command(session: Session, a: str, b: str | None) -> None:
    """Show the differences between two checkpoints, by path.

    diff demo@2 demo@3. Without the second one it is the head of the same thread. What cannot be
    compared without the graph's code is listed.
    """
    store = session.store()
    one = find_checkpoint(store, session.tenant, a)
    other = find_checkpoint(store, session.tenant, b or one.key.thread)
    old, new = (
        session.decode(address.key, read_chain(session.store(), address.key, address.seq))
        for address in (one, other)
    )
    changes, unread = changes_between(old, new)
    if session.as_json:
        document = DiffDocument(
            tenant=session.tenant,
            a=str(one),
            b=str(other),
            changes=tuple(map(change_line, changes)),
            not_compared=unread,
        )
        print_document(document)
        return
    print_lines(map(_text, changes))
    print_lines(
        f"? $.{channel}  cannot be compared: {reason}; pass the graph's code with --app "
        "module:attribute"
        for channel, reason in unread.items()
    )
    if not changes and not unread:
        say(f"{one} and {other} are the same")


def _text(change: Change) -> str:
    if change.kind == "added":
        return f"+ {change.path}  {as_json(change.new)}"
    if change.kind == "removed":
        return f"- {change.path}  {as_json(change.old)}"
    return f"~ {change.path}  {as_json(change.old)} -> {as_json(change.new)}"
