from __future__ import annotations

import shlex

import click

from milecastle.app.runs.calls import Call, if_taken
from milecastle.cli.addressing import command_text
from milecastle.cli.printing import say
from milecastle.cli.running import (
    input_options,
    read_config,
    read_input,
    run_and_exit,
    run_options,
    take_over_option,
)
from milecastle.cli.session import Session
from milecastle.cli.unloadable import load_or_record
from milecastle.cli.verb import app_argument, verb
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.model.tags import read_tags
from milecastle.views.values import fitted


class _RunCommand(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in ("--mode", "--plan", "--workspace"):
                raise
            verb = "plan" if "--plan" in given else "build"
            kept = [word for word in given if word != "--plan"]
            raise click.UsageError(
                f"run has no {error.option_name}: it runs threads. For file graphs, "
                f"write: {shlex.join(['milecastle', verb, *kept])}",
                ctx,
            ) from None


@click.command("run", cls=_RunCommand)
@app_argument
@input_options
@click.option("--discard", is_flag=True, help="Discard an unfinished run that had another input.")
@take_over_option
@run_options
@verb
def command(
    session: Session,
    thread: str | None,
    given: str | None,
    key: str | None,
    again: bool,
    tags: tuple[str, ...],
    discard: bool,
    take_over: bool,
    config: str | None,
    max_steps: int | None,
    timeout: float | None,
    trace: bool,
) -> None:
    """Run a graph on a thread, to its end or an interrupt.

    Called again with the same input, it resumes an unfinished run, or prints the result of a
    completed run without running anything. Exit code 3 means that it waits for a person or a time,
    6 that it is in progress. For file graphs use build.
    """
    values = read_input(given)
    node_config = read_config(config)
    app = load_or_record(session, thread)
    call = Call(
        input=fitted(app.graph.schema, values, {}),
        thread=_key(session, thread, has_store=app.has_store),
        key=key,
        again=again,
        if_exists=if_taken(take_over, discard),
        tags=read_tags(tags),
        options=ExecutionOptions(max_steps=max_steps, timeout=timeout),
        config=node_config,
        mode="events",
    )
    from milecastle.cli.file_runs import declares_files

    if declares_files(app):
        command = command_text("build", *session.typed_apps)
        say(f"nodes declare files, and a thread runs all; to run what is needed: {command}")
    run_and_exit(session, call, trace=trace)


def _key(session: Session, thread: str | None, *, has_store: bool) -> ThreadKey | None:
    if thread is None and has_store:
        from milecastle.app.clock import SystemClock

        thread = SystemClock().new_id()
    return None if thread is None else session.key(thread)
