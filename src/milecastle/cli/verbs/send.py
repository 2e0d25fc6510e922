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
@click.option(
    "--quiet",
    type=float,
    metavar="SECONDS",
    help="Let a waiting thread be due when no message has come for so long.",
)
@click.option(
    "--at-most",
    type=float,
    metavar="SECONDS",
    help="With --quiet: but at most so long after the first message it has not received.",
)
@app_option
@verb
def command(
    session: Session,
    thread: str,
    value: str,
    topic: str,
    message_key: str | None,
    by: str | None,
    quiet: float | None,
    at_most: float | None,
) -> None:
    """Send a message to a thread, whatever its run does.

    JSON if valid, else text. A thread that waits for the topic becomes due; workers resume it.
    """
    app, key = stored_thread(session, thread)
    given = parse_loosely(value)
    sent = app.send(key, given, topic, key=message_key, by=by, quiet=quiet, at_most=at_most)
    document = SendDocument(
        tenant=key.tenant,
        thread=key.thread,
        number=sent.number,
        reused=sent.reused,
        status=sent.status,
    )
    said = "was sent before" if sent.reused else "is stored"
    session.report(document, [f"thread {key.thread}, {sent.status}: message {sent.number} {said}"])
