"""``milecastle diff``: the differences between two checkpoints, of one thread or of two."""

from __future__ import annotations

import click

from milecastle.app.runtime.difference import Change, difference
from milecastle.cli.addressing import CheckpointAddress, find_checkpoint
from milecastle.cli.completing import complete_threads
from milecastle.cli.printing import print_document, print_lines, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.views.decoding import read_chain
from milecastle.views.documents import ChangeLine, DiffDocument
from milecastle.views.values import as_json, plain


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
    unread: dict[str, str] = {}
    old, new = (_values(session, address, unread) for address in (one, other))
    for side in (old, new):
        for channel in unread:
            side.pop(channel, None)
    changes = tuple(difference(old, new))
    if session.as_json:
        document = DiffDocument(
            tenant=session.tenant,
            a=str(one),
            b=str(other),
            changes=tuple(_line(change) for change in changes),
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


def _values(
    session: Session, address: CheckpointAddress, unread: dict[str, str]
) -> dict[str, object]:
    decoded = session.decode(address.key, read_chain(session.store(), address.key, address.seq))
    unread.update(decoded.undecoded)
    return decoded.values


def _line(change: Change) -> ChangeLine:
    return ChangeLine(
        path=change.path, kind=change.kind, old=plain(change.old), new=plain(change.new)
    )


def _text(change: Change) -> str:
    if change.kind == "added":
        return f"+ {change.path}  {as_json(change.new)}"
    if change.kind == "removed":
        return f"- {change.path}  {as_json(change.old)}"
    return f"~ {change.path}  {as_json(change.old)} -> {as_json(change.new)}"
