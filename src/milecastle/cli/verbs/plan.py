from __future__ import annotations

import sys

import click

from milecastle.cli.file_runs import build_options, file_run, print_plan
from milecastle.cli.running import read_input
from milecastle.cli.session import Session
from milecastle.cli.verb import verb
from milecastle.model.run import Mode
from milecastle.views.values import fitted


@click.command("plan")
@build_options
@verb
def command(
    session: Session, thread: str | None, given: str | None, mode: Mode, workspace: str | None
) -> None:
    """Print what build would run and reuse, and why; run nothing.

    Exit code 5 means that build would be refused; the reasons are printed.
    """
    values = read_input(given)
    app = session.app()
    run = file_run(session, app, thread, workspace, mode)
    plan = run.plan(mode, input=fitted(app.graph.schema, values, {}))
    sys.exit(print_plan(session, run.key.thread, plan))
