"""Shared by all verbs: ``--store``, ``--tenant``, ``--json``, ``--debug``, and how they fail.

Rules:

- A user's mistake is a message on stderr and an exit code, never a traceback.
- With ``--json`` there is one document on stdout, whatever happens, and nothing else.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from milecastle.app.application import App
from milecastle.cli.addressing import find_thread
from milecastle.cli.exits import FAILED, STOPPED, code_of
from milecastle.cli.loading import LoadError
from milecastle.cli.printing import print_document, say
from milecastle.cli.session import Session
from milecastle.errors import (
    DefinitionError,
    ExecutionError,
    MilecastleError,
    Problem,
    ResumeRefused,
)
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.views.documents import ErrorDocument, ErrorLine, ProblemLine, WrittenDocument
from milecastle.views.lines import checkpoint_line, names

F = TypeVar("F", bound=Callable[..., Any])


def stored_app(session: Session) -> tuple[App[Any], Store]:
    app = session.app()
    if not app.has_store:
        raise click.UsageError("the app has no store, so it has no threads: set one with --store")
    return app, app.store


def stored_thread(session: Session, thread: str) -> tuple[App[Any], ThreadKey]:
    app, store = stored_app(session)
    return app, find_thread(store, session.tenant, thread)


def print_written(session: Session, written: CheckpointMetadata, what: str) -> None:
    key, line = written.key, checkpoint_line(written)
    document = WrittenDocument(tenant=key.tenant, thread=key.thread, checkpoint=line)
    said = f"{what} {key.thread}@{written.seq} ({written.id}), next: {names(written.next)}"
    session.report(document, [said])


def several_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """A decorator for several options, which help lists in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_common_options = several_options(
    click.option("--store", metavar="URL", help="The store, as a URL or a registered name."),
    click.option("--tenant", metavar="NAME", help="The tenant; 'default' if not set."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
)

workspace_option = click.option(
    "--workspace", metavar="DIR", help="Also include file runs in this workspace."
)
redact_option = click.option(
    "--redact",
    metavar="MODULE[:FUNCTION]",
    help="A function of place and value: its result is shown instead of the value.",
)
deliver_to_option = click.option(
    "--deliver-to",
    multiple=True,
    metavar="HOST[:PORT]",
    help="Also deliver hooks to this host over plain http and at private addresses.",
)
app_option = click.option(
    "--app",
    "apps",
    multiple=True,
    metavar="MODULE[:ATTRIBUTE]",
    help="The graph: an app, a StateGraph or a factory; the attribute is app if not set.",
)


def app_argument(command: F) -> F:
    named = click.argument("references", metavar="[MODULE[:ATTRIBUTE]]", nargs=-1)
    return named(app_option(command))


def apps_argument(command: F) -> F:
    named = click.argument("references", metavar="[MODULE[:ATTRIBUTE]]...", nargs=-1)
    return named(app_option(command))


def verb(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def called(
        *, store: str | None, tenant: str | None, as_json: bool, debug: bool, **given: Any
    ) -> None:
        session = Session(
            store=store,
            tenant=tenant,
            apps=(*given.pop("references", ()), *given.pop("apps", ())),
            as_json=as_json,
            debug=debug,
        )
        try:
            _guarded(session, lambda: function(session, **given))
        finally:
            session.close()

    return _common_options(called)


def _guarded(session: Session, work: Callable[[], None]) -> None:
    try:
        work()
    except (click.exceptions.Exit, click.UsageError, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(STOPPED)
    except MilecastleError as error:
        _fail(session, error, code_of(error), error.code, error.message)
    except LoadError as error:
        _fail(session, error, error.exit_code, None, error.message)
    except Exception as error:
        hint = "" if session.debug else "; --debug shows the traceback"
        message = f"unexpected {type(error).__name__}: {error}{hint}"
        _fail(session, error, FAILED, None, message)


def _fail(
    session: Session, error: Exception, code: int, name: str | None, message: str
) -> NoReturn:
    if session.debug:
        say(*"".join(traceback.format_exception(error)).splitlines())
    if session.as_json:
        problems = error.problems if isinstance(error, DefinitionError) else ()
        line = ErrorLine(
            type=type(error).__name__,
            code=name,
            message=message,
            exit_code=code,
            reasons=error.reasons if isinstance(error, ResumeRefused) else (),
            problems=tuple(map(problem_line, problems)),
        )
        print_document(ErrorDocument(error=line))
    whole = f"error: {message}" + (f" [{name}]" if name else "")
    # Only these contain intended newlines. In any other message a newline is part of a name.
    several = not isinstance(error, MilecastleError) or isinstance(error, DefinitionError)
    say(*(whole.splitlines() if several else [whole]))
    say(*(f"  {note}" for note in getattr(error, "__notes__", ())))
    if isinstance(error, ExecutionError):
        say(*(f"  {line}" for line in _cause(error.cause)))
    if name:
        say(f"  `milecastle explain {name}` explains it")
    sys.exit(code)


def problem_line(problem: Problem) -> ProblemLine:
    place = problem.place
    return ProblemLine(
        code=problem.code,
        message=problem.message,
        file=place.file if place else None,
        line=place.line if place else None,
        suggestion=problem.suggestion,
    )


def _cause(cause: BaseException) -> list[str]:
    lines = f"{type(cause).__name__}: {cause}".splitlines()
    last = next(reversed(traceback.extract_tb(cause.__traceback__)), None)
    return [*lines, f"{last.filename}:{last.lineno}: {last.line}"] if last else lines
