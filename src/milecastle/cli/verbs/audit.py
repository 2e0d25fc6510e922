"""``milecastle audit``: list the answers of a thread and who gave them."""

from __future__ import annotations

import click

from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.printing import print_document, print_table
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, stored_app, verb
from milecastle.model.actor import AnswerRecord
from milecastle.views.documents import AnswerLine, AuditDocument
from milecastle.views.lines import seconds
from milecastle.views.values import as_json, plain


@click.command("audit")
@click.argument("thread", shell_complete=complete_threads)
@app_option
@verb
def command(session: Session, thread: str) -> None:
    """List the answers of a thread, oldest first, and who gave them.

    HOW is authenticated if a server's token names the person, else asserted. Answers of pruned
    checkpoints are not listed.
    """
    app, store = stored_app(session)
    key = find_thread(store, session.tenant, thread)
    lines = tuple(map(_line, app.answers(key)))
    if session.as_json:
        print_document(AuditDocument(tenant=key.tenant, thread=key.thread, answers=lines))
        return
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
    print_table(["QUESTION", "ANSWER", "BY", "HOW", "TIME", "REASON"], rows)


def _who(line: AnswerLine) -> str:
    if line.on_behalf_of is None:
        return line.by or "-"
    return f"{line.by} (on behalf of {line.on_behalf_of}, asserted)"


def _line(record: AnswerRecord) -> AnswerLine:
    by = record.by
    return AnswerLine(
        question=record.question,
        answer=plain(record.answer),
        by=by.id if by else None,
        how=by.how if by else None,
        on_behalf_of=by.on_behalf_of if by else None,
        reason=by.reason if by else "",
        time=record.time.isoformat(),
        timed_out=record.timed_out,
        seq=record.seq,
        run_id=record.run_id,
        digest=record.digest,
    )
