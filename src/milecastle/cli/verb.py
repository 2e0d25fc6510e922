"""What all verbs share: ``--store``, ``--tenant``, ``--json``, ``--debug``, and how they fail.

Rules:

- A mistake of the user's is a message on stderr and an exit code, never a traceback.
- With ``--json`` there is one document on stdout, whatever happens, and nothing else.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import click

from milecastle.cli.documents import ErrorDocument, ErrorLine, ProblemLine
from milecastle.cli.exits import FAILED, STOPPED, code_of
from milecastle.cli.loading import LoadError
from milecastle.cli.printing import print_document, say
from milecastle.cli.session import Session
from milecastle.errors import DefinitionError, ExecutionError, MilecastleError, ResumeRefused
from milecastle.model.problem import Problem

__all__ = ["app_option", "problem_line", "verb"]

_COMMON = (
    click.option("--store", metavar="URL", help="The store, as a URL or a registered name."),
    click.option("--tenant", metavar="NAME", help="Whose threads; 'default' unless set."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
)

app_option = click.option(
    "--app", metavar="MODULE:ATTRIBUTE", help="The graph's code: an app, a StateGraph, a factory."
)


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Make a verb of ``function(session, **given)``."""

    @functools.wraps(function)
    def called(
        *, store: str | None, tenant: str | None, as_json: bool, debug: bool, **given: Any
    ) -> None:
        session = Session(
            store=store,
            tenant=tenant,
            app=given.pop("app", None),
            as_json=as_json,
            debug=debug,
        )
        try:
            _guarded(session, lambda: function(session, **given))
        finally:
            session.close()

    decorated: Callable[..., None] = called
    for option in reversed(_COMMON):
        decorated = option(decorated)
    return decorated


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
        say("".join(traceback.format_exception(error)))
    if session.as_json:
        print_document(ErrorDocument(error=_line(error, code, name, message)))
    say(f"error: {message}" + (f" [{name}]" if name else ""))
    for note in getattr(error, "__notes__", ()):
        say(f"  {note}")
    if isinstance(error, ExecutionError):
        say(_cause(error.cause))
    if name:
        say(f"  {name} is explained in docs/errors.md")
    sys.exit(code)


def _line(error: Exception, code: int, name: str | None, message: str) -> ErrorLine:
    problems = error.problems if isinstance(error, DefinitionError) else ()
    return ErrorLine(
        type=type(error).__name__,
        code=name,
        message=message,
        exit_code=code,
        reasons=error.reasons if isinstance(error, ResumeRefused) else (),
        problems=tuple(map(problem_line, problems)),
    )


def problem_line(problem: Problem) -> ProblemLine:
    """A problem of a graph as JSON."""
    place = problem.place
    return ProblemLine(
        code=problem.code,
        message=problem.message,
        file=place.file if place else None,
        line=place.line if place else None,
        suggestion=problem.suggestion,
    )


def _cause(cause: BaseException) -> str:
    """What the user's node raised, and in which line."""
    frames = traceback.extract_tb(cause.__traceback__)
    place = f"\n  {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return f"  {type(cause).__name__}: {cause}{place}"
