from __future__ import annotations

import click

from milecastle.cli.file_runs import build_options, file_run, print_file_result
from milecastle.cli.running import read_input
from milecastle.cli.session import Session
from milecastle.cli.unloadable import load_or_record
from milecastle.cli.verb import verb
from milecastle.model.policies import ExecutionOptions
from milecastle.model.run import Mode
from milecastle.views.values import fitted


@click.command("build")
@build_options
@click.option("--timeout", type=float, metavar="SECONDS", help="Time limit of the run.")
@verb
def command(
    session: Session,
    thread: str | None,
    given: str | None,
    mode: Mode,
    workspace: str | None,
    timeout: float | None,
) -> None:
    """Build a file graph: run what is needed, and say why.

    Its nodes declare their input and output files. --mode: incremental reuses valid results, clean
    reuses nothing, resume-only resumes the failed run or is refused with exit code 5.
    """
    values = read_input(given)
    app = load_or_record(session, thread, folder=workspace, mode=mode)
    run = file_run(session, app, thread, workspace, mode)
    with session.user_code():
        result = run.run(
            mode,
            input=fitted(app.graph.schema, values, {}),
            options=ExecutionOptions(timeout=timeout),
        )
    print_file_result(session, run.key, mode, result)
