from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from milecastle.app.application import App
from milecastle.app.threads.children import own_threads
from milecastle.app.with_store import with_store
from milecastle.cli.exits import FAILED, OK, REFUSED
from milecastle.cli.printing import ProgressReport, counted
from milecastle.cli.session import Session
from milecastle.cli.verb import app_argument, problem_line, verb
from milecastle.errors import DefinitionError
from milecastle.views.documents import CheckDocument, ThreadFit
from milecastle.views.lines import names
from milecastle.views.versions import thread_fit


@click.command("check")
@app_argument
@click.option("--threads", is_flag=True, help="Also list threads that would not resume, and why.")
@verb
def command(session: Session, threads: bool) -> None:
    """Report all problems of a graph at once, with file and line.

    Exit code 1: the graph has problems. 5: threads of the store would not resume with it.
    """
    try:
        app = session.app()
    except DefinitionError as error:
        _report_problems(session, session.app_reference or "", error)
    fits = tuple(_fits(session, app)) if threads else None
    _print(session, session.app_reference or "", app, fits)
    sys.exit(OK if all(fit.fits for fit in fits or ()) else REFUSED)


def _report_problems(session: Session, reference: str, error: DefinitionError) -> NoReturn:
    document = CheckDocument(
        app=reference,
        ok=False,
        graph=None,
        fingerprint=None,
        nodes=(),
        problems=tuple(map(problem_line, error.problems)),
        threads=None,
    )
    count = f"{reference}: {counted(len(error.problems), 'problem')}"
    session.report(document, [*map(str, error.problems), count])
    sys.exit(FAILED)


def _fits(session: Session, app: App[Any]) -> Iterator[ThreadFit]:
    store = app.store if app.has_store else session.store()
    if not app.has_store:
        app = with_store(app, store)
    progress = ProgressReport("checking threads")
    for info in own_threads(store, session.tenant):
        progress.at(info.key.thread)
        found = thread_fit(app, info)
        if found is not None:
            yield found


def _print(
    session: Session, reference: str, app: App[Any], fits: tuple[ThreadFit, ...] | None
) -> None:
    document = CheckDocument(
        app=reference,
        ok=all(fit.fits for fit in fits or ()),
        graph=app.graph.name,
        fingerprint=app.fingerprint,
        nodes=tuple(app.graph.nodes),
        problems=(),
        threads=fits,
    )
    lines = [f"{reference}: no problems (nodes {names(tuple(app.graph.nodes))})"]
    if fits is not None:
        misfits = [fit for fit in fits if not fit.fits]
        for fit in misfits:
            lines.append(f"{fit.thread}: would not resume ({fit.status}, next {names(fit.next)})")
            lines += (f"  {reason}" for reason in fit.reasons)
        lines += (f"{fit.thread}: {fit.note}" for fit in fits if fit.note)
        lines.append(f"{counted(len(fits), 'unfinished thread')}, {len(misfits)} would not resume")
    session.report(document, lines)
