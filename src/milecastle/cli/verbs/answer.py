"""``milecastle answer``: what a thread waits for."""

from __future__ import annotations

import click

from milecastle.app.answering import Given
from milecastle.app.launching import Wish
from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.questions import choose, parse_answer
from milecastle.cli.running import finish, options_of, run_options
from milecastle.cli.session import Session
from milecastle.cli.values import parse_object
from milecastle.cli.verb import app_option, verb
from milecastle.cli.writing import stored_app
from milecastle.errors import ResumeRefused

__all__ = ["command"]


@click.command("answer")
@click.argument("thread", shell_complete=complete_threads)
@click.argument("answer", metavar="ANSWER")
@click.option("--id", "question_id", metavar="ID", help="Which question, if several are open.")
@app_option
@run_options
@verb
def command(
    session: Session,
    thread: str,
    answer: str,
    question_id: str | None,
    config: str | None,
    max_steps: int | None,
    timeout: float | None,
    trace: bool,
) -> None:
    """Answer the question at which a thread waits, and go on.

    JSON if it is that, else text; yes and no where the question takes a bool.
    """
    node_config = parse_object(config, "--config") if config else None
    app, store = stored_app(session)
    key = find_thread(store, session.tenant, thread)
    head = app.state(key)
    if head.status == "completed":
        raise ResumeRefused(key.thread, ["it already ended, and waits for no answer"])
    question = choose(key.thread, head.interrupts, question_id)
    value = parse_answer(answer, question.answer)
    with session.user_code():
        call = app.begin(
            Wish(
                thread=key,
                options=options_of(max_steps, timeout),
                config=node_config,
                mode="events",
                given=Given(answers={question.id: value}),
            )
        )
    finish(session, call, trace=trace, reference=session.typed_app)
