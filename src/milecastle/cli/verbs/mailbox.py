from __future__ import annotations

import click

from milecastle.cli.completing import complete_threads
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, stored_thread, verb
from milecastle.errors import InvalidRequest
from milecastle.views.documents import MailboxDocument
from milecastle.views.messages import message_line
from milecastle.views.values import as_json


@click.command("mailbox")
@click.argument("thread", shell_complete=complete_threads)
@click.option("--topic", metavar="TOPIC", help="Only messages of this topic.")
@click.option("--discard", type=int, metavar="NUMBER", help="Remove this message first.")
@app_option
@verb
def command(session: Session, thread: str, topic: str | None, discard: int | None) -> None:
    """List the unread messages of a thread, oldest first.

    --discard removes one that no code can receive, for example one of a wrong type.
    """
    app, key = stored_thread(session, thread)
    if discard is not None and not app.discard(key, discard):
        raise InvalidRequest(f"thread '{key.thread}' has no unread message {discard}")
    lines = tuple(map(message_line, app.mailbox(key, topic)))
    rows = [f"{one.number}  {one.sent_at}  {one.topic}  {as_json(one.value)}" for one in lines]
    document = MailboxDocument(tenant=key.tenant, thread=key.thread, messages=lines)
    session.report(document, rows or ["no unread messages"])
