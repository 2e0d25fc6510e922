"""``milecastle check``: is the graph right, and would the threads of a store go on with it?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from milecastle.app.application import App
from milecastle.app.children import own_threads
from milecastle.app.clock import SystemClock
from milecastle.cli.documents import CheckDocument, ThreadFit
from milecastle.cli.exits import FAILED, OK, REFUSED
from milecastle.cli.lines import names
from milecastle.cli.printing import counted, print_document, print_lines
from milecastle.cli.progress import Progress
from milecastle.cli.session import Session
from milecastle.cli.verb import problem_line, verb
from milecastle.errors import DefinitionError
from milecastle.model.run import ThreadInfo
from milecastle.ports.store import Store

__all__ = ["command"]


@click.command("check")
@click.argument("reference", metavar="[MODULE:ATTRIBUTE]", required=False)
@click.option("--threads", is_flag=True, help="Also say which threads would not resume, and why.")
@verb
def command(session: Session, reference: str | None, threads: bool) -> None:
    """Report all problems of a graph at once, with file and line.

    Exit code 1: the graph has problems. 5: threads of the store would not resume with it.
    """
    try:
        app = session.app(reference)
    except DefinitionError as error:
        _report_problems(session, reference or session.app_reference or "", error)
    fits = tuple(_fits(session, app)) if threads else None
    _print(session, reference or session.app_reference or "", app, fits)
    sys.exit(OK if all(fit.fits for fit in fits or ()) else REFUSED)


def _report_problems(session: Session, reference: str, error: DefinitionError) -> NoReturn:
    if session.as_json:
        document = CheckDocument(
            app=reference,
            ok=False,
            graph=None,
            fingerprint=None,
            nodes=(),
            problems=tuple(map(problem_line, error.problems)),
            threads=None,
        )
        print_document(document)
    else:
        print_lines(map(str, error.problems))
        print_lines([f"{reference}: {counted(len(error.problems), 'problem')}"])
    sys.exit(FAILED)


def _fits(session: Session, app: App[Any]) -> Iterator[ThreadFit]:
    """Each thread that has something left to do, and whether it would go on."""
    store = app.store or session.store()
    if app.store is None:
        app = app.using(store=store, clock=SystemClock())
    progress = Progress("checking threads")
    for info in own_threads(store, session.tenant):
        progress.at(info.key.thread)
        found = _fit(store, app, info)
        if found is not None:
            yield found


def _fit(store: Store, app: App[Any], info: ThreadInfo) -> ThreadFit | None:
    key = info.key
    head = next(iter(store.history(key, limit=1)), None)
    if head is None or not (head.next or head.route):
        return None
    fit = app.fit(key)
    return ThreadFit(
        thread=key.thread,
        status=info.status,
        next=head.next or head.route,
        fits=bool(fit),
        reasons=fit.reasons,
        note=fit.note,
    )


def _print(
    session: Session, reference: str, app: App[Any], fits: tuple[ThreadFit, ...] | None
) -> None:
    if session.as_json:
        document = CheckDocument(
            app=reference,
            ok=all(fit.fits for fit in fits or ()),
            graph=app.graph.name,
            fingerprint=app.fingerprint,
            nodes=tuple(app.graph.nodes),
            problems=(),
            threads=fits,
        )
        print_document(document)
        return
    print_lines([f"{reference}: no problems (nodes {names(tuple(app.graph.nodes))})"])
    if fits is None:
        return
    misfits = [fit for fit in fits if not fit.fits]
    for fit in misfits:
        print_lines([f"{fit.thread}: would not resume ({fit.status}, next {names(fit.next)})"])
        print_lines(f"  {reason}" for reason in fit.reasons)
    print_lines(f"{fit.thread}: {fit.note}" for fit in fits if fit.note)
    print_lines([f"{counted(len(fits), 'unfinished thread')}, {len(misfits)} would not resume"])
