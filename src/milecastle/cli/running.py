"""Running a graph from the command line: progress and trace on stderr, the result on stdout.

Ctrl-C ends the run at its last commit, and prints how to continue.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from milecastle.app.application import App
from milecastle.app.results import Result
from milecastle.app.runs.calls import Call
from milecastle.app.runs.planned import PlannedRun
from milecastle.app.runs.submission import Handle
from milecastle.cli.addressing import command_text
from milecastle.cli.exits import FAILED, INTERRUPTED, OK, STOPPED
from milecastle.cli.printing import ProgressReport, print_document, print_lines, print_state, say
from milecastle.cli.questions import parse_object, question_text
from milecastle.cli.session import Session
from milecastle.cli.verb import several_options
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.views.lines import moment, names, run_document, seconds, submit_document
from milecastle.views.values import as_json

config_option = click.option("--config", metavar="JSON", help="The config that nodes receive.")

run_options = several_options(
    config_option,
    click.option(
        "--max-steps", type=click.IntRange(min=1), metavar="N", help="Maximum number of steps."
    ),
    click.option("--timeout", type=float, metavar="SECONDS", help="Time limit of the run."),
    click.option("--trace", is_flag=True, help="Print every event to stderr."),
)

input_options = several_options(
    click.option(
        "--thread", metavar="NAME", help="The thread; if omitted, a new one with a generated id."
    ),
    click.option("--input", "given", metavar="JSON", help="A JSON object, @FILE, or - for stdin."),
    click.option(
        "--key",
        metavar="TEXT",
        help="Idempotency key, compared with earlier runs instead of the input.",
    ),
    click.option("--again", is_flag=True, help="Run again even if this input already completed."),
    click.option(
        "--tag",
        "tags",
        metavar="TAG",
        multiple=True,
        help="A tag to add to the thread, if a run is started; may be repeated.",
    ),
)

take_over_option = click.option(
    "--take-over", is_flag=True, help="Take over the thread from a running process."
)


def read_input(given: str | None) -> dict[str, Any]:
    if not given:
        return {}
    if given == "-":
        return parse_object(sys.stdin.read(), "--input")
    if not given.startswith("@"):
        return parse_object(given, "--input")
    try:
        return parse_object(Path(given[1:]).read_text("utf-8"), "--input")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--input {given}: {error}") from None


def read_config(given: str | None) -> dict[str, Any] | None:
    return parse_object(given, "--config") if given else None


def run_and_exit(session: Session, call: Call, *, trace: bool) -> NoReturn:
    app = session.app()
    with session.user_code():
        planned = app.runner.begin(call)
    key = planned.key if isinstance(planned, PlannedRun) else planned.thread
    reference = session.typed_app
    try:
        with session.user_code():
            result = planned if isinstance(planned, Result) else _driven(app, planned, trace)
    except KeyboardInterrupt:
        say(f"stopped; committed steps are saved.{go_on_hint(app, key, reference)}")
        sys.exit(STOPPED)
    except SystemExit as error:
        say(
            f"a node called sys.exit({error.code!r}); the run has not completed."
            f"{go_on_hint(app, key, reference)}"
        )
        sys.exit(FAILED)
    _print(session, app, result, reference)
    sys.exit(OK if result.status == "completed" else INTERRUPTED)


def _driven(app: App[Any], planned: PlannedRun, trace: bool) -> Result[Any]:
    progress = ProgressReport("running")
    events = planned.events()
    while True:
        try:
            event = next(events)
        except StopIteration as stop:
            return app.runner.conclude(planned, stop.value)
        if trace:
            say(_traced(event))
        if event.type == "node_complete":
            progress.at(f"node {event.node}, step {event.step}")


def _traced(event: Event) -> str:
    seq = "" if event.seq is None else f" seq={event.seq}"
    node = f" {event.node}" if event.node else ""
    more = "".join(f" {name}={as_json(value)}" for name, value in event.facts.items())
    return f"trace: {event.type}{node} step={event.step}{seq}{more}"


def go_on_hint(app: App[Any], key: ThreadKey | None, reference: str | None) -> str:
    if key is None or not app.has_store:
        return " Nothing was saved: the app has no store."
    return f" Continue with: {command_text('resume', key.thread, app=reference)}"


def _print(session: Session, app: App[Any], result: Result[Any], reference: str | None) -> None:
    document = run_document(result)
    if session.as_json:
        print_document(document)
        return
    thread = f"thread {document.thread}" if document.thread else "no thread"
    print_lines([f"{thread}: {result.status}{_where(result)} (run {result.run_id})"])
    print_state(result.state)
    print_lines(map(question_text, document.questions))
    if result.reused:
        say("it already completed with this input, so nothing was run: --again starts a new run")
    elif not app.has_store:
        say("nothing was saved: set a store with --store or compile(store=...)")
    elif document.questions:
        command = command_text("answer", str(document.thread), "ANSWER", app=reference)
        say(f"Answer with: {command}")
    elif result.status != "completed":
        say(go_on_hint(app, result.thread, reference).strip())


def _where(result: Result[Any]) -> str:
    if result.status == "interrupted":
        asking = tuple(one.node for one in result.interrupts if one.asks)
        return f" at {names(asking)}" if asking else f" before {names(result.next)}"
    return f" until {seconds(moment(result.wake_at))}" if result.wake_at else ""


def print_handle(session: Session, handle: Handle[Any]) -> None:
    key = handle.thread
    session.report(
        submit_document(handle), [f"thread {key.thread}: run {handle.run_id} is {handle.status}"]
    )
