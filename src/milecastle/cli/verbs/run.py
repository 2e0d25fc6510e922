"""``milecastle run``: a graph on a thread, from an input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import click

from milecastle.app.application import App
from milecastle.app.launching import Wish
from milecastle.cli.loading import LoadError
from milecastle.cli.running import finish, options_of, run_options
from milecastle.cli.session import Session
from milecastle.cli.values import fitted, parse_object
from milecastle.cli.verb import verb
from milecastle.errors import DefinitionError
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.model.run import Mode

__all__ = ["command"]


@click.command("run")
@click.argument("reference", metavar="[MODULE:ATTRIBUTE]", required=False)
@click.option("--thread", metavar="NAME", help="The thread; a new one with an id if left out.")
@click.option("--input", "given", metavar="JSON", help="A JSON object, @FILE, or - for stdin.")
@click.option(
    "--mode", type=click.Choice(get_args(Mode)), help="What of an earlier run may be used."
)
@click.option("--plan", is_flag=True, help="Print what would be run and why, and run nothing.")
@click.option("--workspace", metavar="DIR", help="Where a graph over files keeps what it made.")
@run_options
@verb
def command(
    session: Session,
    reference: str | None,
    thread: str | None,
    given: str | None,
    mode: Mode | None,
    plan: bool,
    workspace: str | None,
    config: str | None,
    max_steps: int | None,
    timeout: float | None,
    trace: bool,
) -> None:
    """Run a graph on a thread, to its end or an interrupt.

    Called again with the same input on a thread whose run was cut short, it goes on from the last
    checkpoint. Exit code 3 says that it waits for somebody, or for a time.

    --mode: incremental reuses what is valid, clean nothing, resume-only goes on or is refused.
    """
    values = parse_object(_read(given), "--input") if given else {}
    node_config = parse_object(config, "--config") if config else None
    options = options_of(max_steps, timeout)
    app = _load(session, reference, thread, mode)
    input = fitted(app.graph.schema, values, {})
    from milecastle.cli.file_runs import declares_files

    if workspace or declares_files(app):
        _run_files(session, app, thread, input, mode or "incremental", plan, workspace, options)
        return
    key = _key(session, thread, has_store=app.store is not None)
    wish = Wish(input=input, thread=key, options=options, config=node_config, mode="events")
    from milecastle.cli.thread_runs import in_mode, print_thread_plan

    if plan:
        sys.exit(print_thread_plan(session, app, key, mode or "incremental"))
    with session.user_code():
        call = app.begin(in_mode(app, wish, mode or "incremental"))
    finish(session, call, trace=trace, reference=reference)


def _load(
    session: Session, reference: str | None, thread: str | None, mode: Mode | None
) -> App[Any]:
    """The app; if it cannot be loaded, that is recorded where it can be."""
    try:
        return session.app(reference)
    except (LoadError, DefinitionError) as error:
        if thread:
            from milecastle.cli.unloadable import record_unloadable

            record_unloadable(session, thread, mode or "incremental", error)
        raise


def _run_files(
    session: Session,
    app: App[Any],
    thread: str | None,
    input: Any,
    mode: Mode,
    plan: bool,
    folder: str | None,
    options: ExecutionOptions,
) -> None:
    from milecastle.cli.file_runs import file_run, print_file_result, print_plan

    run = file_run(session, app, thread, folder)
    if plan:
        sys.exit(print_plan(session, run.key.thread, run.plan(mode, input=input)))
    with session.user_code():
        result = run.run(mode, input=input, options=options)
    print_file_result(session, run.key, mode, result)


def _key(session: Session, thread: str | None, *, has_store: bool) -> ThreadKey | None:
    if thread is None and has_store:
        from milecastle.app.clock import SystemClock

        thread = SystemClock().new_id()
    return None if thread is None else session.key(thread)


def _read(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--input {given}: {error}") from None
