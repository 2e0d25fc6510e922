"""``milecastle diff``: what differs between two checkpoints, of one thread or of two."""

from __future__ import annotations

import click

from milecastle.app.difference import Change, difference
from milecastle.cli.addressing import Address, find_checkpoint
from milecastle.cli.completing import complete_threads
from milecastle.cli.decoding import decode, read_chain
from milecastle.cli.documents import ChangeLine, DiffDocument
from milecastle.cli.printing import print_document, print_lines, say
from milecastle.cli.session import Session
from milecastle.cli.values import as_json, plain
from milecastle.cli.verb import app_option, verb

__all__ = ["command"]


@click.command("diff")
@click.argument("a", metavar="THREAD@CHECKPOINT", shell_complete=complete_threads)
@click.argument("b", metavar="[THREAD[@CHECKPOINT]]", required=False)
@app_option
@verb
def command(session: Session, a: str, b: str | None) -> None:
    """Show what differs between two checkpoints, by path.

    diff demo@2 demo@3. Without the second one it is the head of the same thread.
    """
    store = session.store()
    one = find_checkpoint(store, session.tenant, a)
    other = find_checkpoint(store, session.tenant, b or one.key.thread)
    left_out: dict[str, str] = {}
    old, new = (_values(session, address, left_out) for address in (one, other))
    for side in (old, new):
        for channel in left_out:
            side.pop(channel, None)
    changes = tuple(difference(old, new))
    for channel, reason in left_out.items():
        say(f"'{channel}' is left out: {reason}; --app module:attribute brings the code")
    if session.as_json:
        lines = tuple(_line(change) for change in changes)
        print_document(DiffDocument(tenant=session.tenant, a=str(one), b=str(other), changes=lines))
    elif changes:
        print_lines(map(_text, changes))
    else:
        say(f"{one} and {other} are the same")


def _values(session: Session, address: Address, left_out: dict[str, str]) -> dict[str, object]:
    decoded = decode(session, address.key, read_chain(session, address.key, address.seq))
    left_out.update(decoded.undecoded)
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
