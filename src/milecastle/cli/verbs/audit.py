from __future__ import annotations

import click

from milecastle.cli.completing import complete_threads
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, stored_thread, verb
from milecastle.views.documents import AnswerLine, AuditDocument
from milecastle.views.lines import answer_line, seconds
from milecastle.views.values import as_json


@click.command("audit")
@click.argument("thread", shell_complete=complete_threads)
@app_option
@verb
def command(session: Session, thread: str) -> None:
    """List the answers of a thread, oldest first, and who gave them.

    HOW is authenticated if a server's token names the person, else asserted. Answers of pruned
    checkpoints are not listed.
    """
    app, key = stored_thread(session, thread)
    lines = tuple(map(answer_line, app.answers(key)))
    rows = [
        [
            line.question,
            "timed out" if line.timed_out else as_json(line.answer),
            _who(line),
            line.how or "-",
            seconds(line.time),
            line.reason,
        ]
        for line in lines
    ]
    document = AuditDocument(tenant=key.tenant, thread=key.thread, answers=lines)
    session.report_table(document, ["QUESTION", "ANSWER", "BY", "HOW", "TIME", "REASON"], rows)


def _who(line: AnswerLine) -> str:
    if line.on_behalf_of is None:
        return line.by or "-"
    return f"{line.by} (on behalf of {line.on_behalf_of}, asserted)"
