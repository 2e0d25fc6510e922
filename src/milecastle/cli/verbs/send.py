"""``milecastle send``: send a message to a thread."""

from __future__ import annotations

import click

from milecastle.cli.completing import complete_threads
from milecastle.cli.questions import parse_loosely
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, stored_thread, verb
from milecastle.views.documents import SendDocument


@click.command("send")
@click.argument("thread", shell_complete=complete_threads)
@click.argument("value", metavar="VALUE")
@click.option("--topic", default="", metavar="TOPIC", help="The topic that a node receives.")
@click.option(
    "--key",
    "message_key",
    metavar="KEY",
    help="Identifies the message: with the same key, sending it again is safe.",
)
@click.option("--by", metavar="NAME", help="Who sends it.")
@app_option
@verb
def command(
    session: Session, thread: str, value: str, topic: str, message_key: str | None, by: str | None
) -> None:
    """Send a message to a thread, whatever its run does.

    JSON if valid, else text. A thread that waits for the topic becomes due; workers resume it.
    """
    app, key = stored_thread(session, thread)
    sent = app.send(key, parse_loosely(value), topic, key=message_key, by=by)
    document = SendDocument(
        tenant=key.tenant,
        thread=key.thread,
        number=sent.number,
        reused=sent.reused,
        status=sent.status,
    )
    said = "was sent before" if sent.reused else "is stored"
    session.report(document, [f"thread {key.thread}, {sent.status}: message {sent.number} {said}"])
