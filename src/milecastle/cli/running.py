"""Running a graph for a person: progress and trace on stderr, the outcome on stdout.

Ctrl-C ends the run at its last commit, and tells how to go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from milecastle.app.application import App
from milecastle.app.calls import Call
from milecastle.app.results import Result
from milecastle.cli.documents import RunDocument
from milecastle.cli.exits import INTERRUPTED, OK, STOPPED
from milecastle.cli.lines import names, print_state, seconds
from milecastle.cli.printing import moment, print_document, print_lines, say
from milecastle.cli.progress import Progress
from milecastle.cli.questions import question_lines, question_text
from milecastle.cli.session import Session
from milecastle.cli.values import as_json, plain
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions

__all__ = ["finish", "go_on_hint", "options_of", "run_options"]

F = TypeVar("F", bound=Callable[..., Any])

_RUN_OPTIONS = (
    click.option("--config", metavar="JSON", help="What nodes get as config."),
    click.option(
        "--max-steps", type=click.IntRange(min=1), metavar="N", help="The most steps of this run."
    ),
    click.option("--timeout", type=float, metavar="SECONDS", help="The most time of this run."),
    click.option("--trace", is_flag=True, help="Print every event on stderr."),
)


def run_options(command: F) -> F:
    """The options of every verb that runs something."""
    for option in reversed(_RUN_OPTIONS):
        command = option(command)
    return command


def options_of(max_steps: int | None, timeout: float | None) -> ExecutionOptions:
    """What the flags set for this call."""
    return ExecutionOptions(max_steps=max_steps, timeout=timeout)


def finish(
    session: Session, call: Call | Result[Any], *, trace: bool, reference: str | None
) -> None:
    """Run a call to rest, print what came of it, and leave with the right exit code."""
    app = session.app()
    key = call.key if isinstance(call, Call) else call.thread
    try:
        with session.user_code():
            result = call if isinstance(call, Result) else _driven(app, call, trace)
    except KeyboardInterrupt:
        say(f"stopped; what was committed stays.{go_on_hint(app, key, reference)}")
        sys.exit(STOPPED)
    _print(session, app, result, reference)
    sys.exit(OK if result.status == "completed" else INTERRUPTED)


def _driven(app: App[Any], call: Call, trace: bool) -> Result[Any]:
    """Perform the run, saying what happens."""
    progress = Progress("running")
    events = call.events()
    while True:
        try:
            event = next(events)
        except StopIteration as stop:
            return app.conclude(call, stop.value)
        if trace:
            say(_traced(event))
        if event.type == "node_complete":
            progress.at(f"node {event.node}, step {event.step}")


def _traced(event: Event) -> str:
    """An event as a line: never a value of the state."""
    seq = "" if event.seq is None else f" seq={event.seq}"
    node = f" {event.node}" if event.node else ""
    more = "".join(f" {name}={as_json(value)}" for name, value in event.data.items())
    return f"trace: {event.type}{node} step={event.step}{seq}{more}"


def go_on_hint(app: App[Any], key: ThreadKey | None, reference: str | None) -> str:
    """How to go on with a thread, as a command."""
    if key is None or app.store is None:
        return " Nothing was saved: the app has no store."
    named = f" --app {reference}" if reference else ""
    return f" Go on with: milecastle resume {key.thread}{named}"


def _print(session: Session, app: App[Any], result: Result[Any], reference: str | None) -> None:
    document = RunDocument(
        tenant=result.thread.tenant if result.thread else None,
        thread=result.thread.thread if result.thread else None,
        run_id=result.run_id,
        status=result.status,
        nodes=result.nodes,
        next=result.next,
        step=result.step,
        timestamp=moment(result.timestamp),
        wake_at=moment(result.wake_at),
        questions=question_lines(result.interrupts),
        state=plain(result.state),
    )
    if session.as_json:
        print_document(document)
        return
    thread = f"thread {document.thread}" if document.thread else "no thread"
    print_lines([f"{thread}: {result.status}{_where(result)} (run {result.run_id})"])
    print_state(result.state)
    print_lines(map(question_text, document.questions))
    if app.store is None:
        say("nothing was saved: name a store with --store, or in compile(store=...)")
    elif document.questions:
        named = f" --app {reference}" if reference else ""
        say(f"Answer with: milecastle answer {document.thread} ANSWER{named}")
    elif result.status != "completed":
        say(go_on_hint(app, result.thread, reference).strip())


def _where(result: Result[Any]) -> str:
    if result.status == "interrupted":
        asking = tuple(one.node for one in result.interrupts if one.asks)
        return f" at {names(asking)}" if asking else f" before {names(result.next)}"
    return f" until {seconds(moment(result.wake_at))}" if result.wake_at else ""
