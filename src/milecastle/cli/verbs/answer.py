from __future__ import annotations

import click

from milecastle.app.runs.answering import Given
from milecastle.app.runs.calls import Call, if_taken
from milecastle.cli.completing import complete_threads
from milecastle.cli.questions import choose, parse_answer
from milecastle.cli.running import read_config, run_and_exit, run_options, take_over_option
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, stored_thread, verb
from milecastle.errors import ResumeRefused
from milecastle.model.actor import Actor
from milecastle.model.policies import ExecutionOptions


@click.command("answer")
@click.argument("thread", shell_complete=complete_threads)
@click.argument("answer", metavar="ANSWER")
@click.option(
    "--question", "question_id", metavar="ID", help="The question to answer, if several are open."
)
@click.option(
    "--key",
    "answer_key",
    metavar="KEY",
    help="Identifies the answer: with the same key, sending it again is safe.",
)
@click.option("--by", metavar="NAME", help="Who answers; stored with the answer.")
@click.option("--reason", default="", metavar="TEXT", help="Why, with --by; stored, too.")
@app_option
@take_over_option
@run_options
@verb
def command(
    session: Session,
    thread: str,
    answer: str,
    question_id: str | None,
    answer_key: str | None,
    by: str | None,
    reason: str,
    take_over: bool,
    config: str | None,
    max_steps: int | None,
    timeout: float | None,
    trace: bool,
) -> None:
    """Answer an open question of a thread and resume it.

    JSON if valid, else text; yes and no if the question expects a bool.
    """
    if reason and by is None:
        raise click.UsageError("--reason is stored with the name of a person: add --by")
    actor = None if by is None else Actor(by, reason=reason)
    node_config = read_config(config)
    app, key = stored_thread(session, thread)
    head = app.state(key)
    if answer_key is not None and not head.interrupts:
        given = Given(answer=answer, key=answer_key, by=actor)
    elif head.status == "completed":
        raise ResumeRefused(key.thread, ["it has already ended and has no open question"])
    else:
        question = choose(key.thread, head.interrupts, question_id)
        value = parse_answer(answer, question.answer)
        given = Given(answers={question.id: value}, key=answer_key, by=actor)
    call = Call(
        thread=key,
        options=ExecutionOptions(max_steps=max_steps, timeout=timeout),
        config=node_config,
        mode="events",
        if_exists=if_taken(take_over),
        given=given,
    )
    run_and_exit(session, call, trace=trace)
