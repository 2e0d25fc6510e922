"""Loading ``module:attribute``: the user typed it, so it is imported.

This is the one place where something is imported by name. The name comes from the command line,
the environment or pyproject.toml, and never from anything stored.
"""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast

import click

from milecastle.app.application import App
from milecastle.app.flow import Flow
from milecastle.app.runner import Runner
from milecastle.app.state_graph import StateGraph
from milecastle.cli.exits import FAILED
from milecastle.errors import DefinitionError, MilecastleError
from milecastle.views.values import anything

_REFERENCE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::([^\W\d]\w*(?:\.[^\W\d]\w*)*))?")


class LoadError(click.ClickException):
    """The graph's code cannot be loaded; the message names the failing line in the user's code."""

    exit_code = FAILED


def check_reference(reference: str) -> tuple[str, str | None]:
    """A reference's module and attribute; ``None`` if it names only the module.

    Raises:
        click.UsageError: it is not one.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None or found[1].endswith(".py"):
        raise click.UsageError(
            f"'{reference}' is not a reference to an app: write module:attribute, "
            f"such as {_meant(reference)}"
        )
    return found[1], found[2]


def _meant(reference: str) -> str:
    place, _, attribute = reference.partition(":")
    module = place.removesuffix(".py").replace("/", ".").replace("\\", ".").strip(".")
    guess = f"{module}:{attribute or 'app'}"
    return guess if _REFERENCE.fullmatch(guess) else "demo:app"


def load(reference: str, folder: Path) -> list[App[Any] | StateGraph[Any]]:
    """A reference's apps or graphs, at least one; a factory is called.

    An attribute may be a list. ``demo`` means ``demo:app``, or every app in a module without one.

    Raises:
        click.UsageError: the reference is malformed.
        DefinitionError: it is a graph with problems.
        LoadError: it cannot be imported, or is something else.
    """
    name, attribute = check_reference(reference)
    module = _module(name, folder)
    if attribute is None and not hasattr(module, "app"):
        found: Any = _apps_of(module)
    else:
        found = _attribute(module, attribute or "app")
    if callable(found) and not isinstance(found, App | StateGraph | Flow):
        found = _call(cast("Callable[[], Any]", found), reference)
    listed: list[Any] = list(anything(found)) if isinstance(found, list | tuple) else [found]
    listed = [cast("Any", one).graph() if isinstance(one, Flow) else one for one in listed]
    if not listed:
        raise LoadError(f"{reference} is an empty list: it needs at least one app")
    for one in listed:
        if not isinstance(one, App | StateGraph):
            raise LoadError(
                f"{reference} is {type(one).__name__}; expected an app, a StateGraph, a list of "
                "them, or a function that returns one"
            )
    return listed


def load_hook(reference: str, folder: Path) -> Callable[..., Any]:
    """A reference's function; ``settings`` means ``settings:redact``.

    Raises:
        click.UsageError: the reference is malformed.
        LoadError: it cannot be imported, or is not a function.
    """
    name, attribute = check_reference(reference)
    found = _attribute(_module(name, folder), attribute or "redact")
    if not callable(found):
        raise LoadError(f"{reference} is {type(found).__name__}; expected a function")
    return cast("Callable[..., Any]", found)


def _module(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    with _nothing_runs(name):
        return _import(name, folder)


def _apps_of(module: ModuleType) -> list[Any]:
    for kind in (App, StateGraph):
        found: list[Any] = [one for one in vars(module).values() if isinstance(one, kind)]
        if found:
            return list({id(one): one for one in found}.values())
    raise LoadError(f"module '{module.__name__}' has no 'app', and no other app or graph")


@contextmanager
def _nothing_runs(name: str) -> Generator[None]:
    """Refuse a module that runs a graph on import: inspecting it would run it."""

    def refuse(*_: object) -> NoReturn:
        frames = traceback.extract_stack()[:-1]
        own = [frame for frame in frames if not _is_ours(frame.filename)]
        place = f"\n  {own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""
        raise LoadError(
            f"module '{name}' runs a graph when it is imported: put that under "
            f'`if __name__ == "__main__":`{place}'
        )

    begin: Any = vars(Runner)["begin"]
    setattr(Runner, "begin", refuse)  # noqa: B010 - for the time of an import
    try:
        yield
    finally:
        setattr(Runner, "begin", begin)  # noqa: B010


def _import(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)  # noqa: TID251 - a person typed the name
    except (DefinitionError, LoadError):
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise LoadError(
                f"there is no module '{error.name}' in {folder}, and none is installed"
            ) from error
        raise _failure(f"module '{name}' cannot be imported", error) from error
    except (Exception, SystemExit) as error:
        raise _failure(f"module '{name}' cannot be imported", error) from error


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = [n for n, v in vars(module).items() if isinstance(v, App | StateGraph)]
            hint = f"; it has {', '.join(sorted(known))}" if known else ""
            raise LoadError(f"module '{module.__name__}' has no '{path}'{hint}") from None
    return found


def _call(factory: Callable[[], Any], reference: str) -> Any:
    try:
        return factory()
    except MilecastleError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(f"{reference}() failed", error) from error


def _failure(what: str, error: BaseException) -> LoadError:
    return LoadError(f"{what}: {type(error).__name__}: {error}{_place(error)}")


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"\n  {error.filename}:{error.lineno}: {(error.text or '').strip()}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not _is_ours(frame.filename)
    ]
    if not frames:
        return ""
    return f"\n  {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parents[1]) or "importlib" in file
