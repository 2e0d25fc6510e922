"""What a node declares so that its work can be reused: files, parameters, a key, a version.

The declaration travels with the function: ``files(...)`` gives a partial of it that carries one,
so that a function may serve several nodes with different files. While the node runs, ``root()`` is
the folder that its paths are relative to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "milecastle_files"

PathName = str | PathLike[str]


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Reuse what a node returned while ``key(state)`` gives the same, for ``ttl`` seconds.

    Without ``key`` the whole state counts; without ``ttl`` a result does not age.
    """

    key: Callable[[Any], Any] | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None and self.ttl <= 0:
            raise ValueError(f"ttl= must be positive, not {self.ttl}")


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """What a node reads and makes. Paths are relative to the workspace's root.

    ``reads_state`` says whether the state is among what the node depends on; ``None`` leaves it
    to the function's parameters. ``parameters`` is anything else that it depends on.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cache: Cache | None = None
    version: str | None = None
    parameters: Any = None
    reads_state: bool | None = None


def files(
    *,
    inputs: Iterable[PathName] | PathName = (),
    outputs: Iterable[PathName] | PathName = (),
    cache: Cache | None = None,
    version: str | None = None,
    parameters: Any = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what the decorated node reads and makes, so that its work can be reused.

    ``version`` represents the node's code; without it the code itself counts, and everything that
    it refers to.
    """
    declared = Files(
        inputs=as_paths(inputs),
        outputs=as_paths(outputs),
        cache=cache,
        version=version,
        parameters=parameters,
    )
    return lambda function: declare(function, declared)


def declare(function: Callable[..., Any], declared: Files) -> Callable[..., Any]:
    """The function with a declaration; the function itself is unchanged."""
    carrier = partial(function)
    setattr(carrier, _MARK, declared)
    return carrier


def files_of(function: Any) -> Files | None:
    """What was declared of a node's function, or ``None``."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Files) else None


def as_paths(given: Iterable[PathName] | PathName) -> tuple[str, ...]:
    """Paths as stored: with slashes, each once, in the order given."""
    several = [given] if isinstance(given, str | PathLike) else given
    return tuple(dict.fromkeys(_path(one) for one in several))


def _path(given: PathName) -> str:
    name = fspath(given).replace("\\", "/")
    if not name or "\0" in name:
        raise ValueError("the path of an input or output must not be empty or contain NUL")
    return name


class CurrentRun(msgspec.Struct, frozen=True):
    """Where a node runs. ``lock`` is the file whose lock excludes other runs."""

    root: Path
    lock: int | None
    keep_log: Callable[[bytes], str]


within: Final[ContextVar[CurrentRun | None]] = ContextVar("milecastle_file_run", default=None)


def current() -> CurrentRun | None:
    """The run that calls this node; ``None`` outside of a file run."""
    return within.get()


def root() -> Path:
    """Where the files of the run are: its workspace's root, else the current folder."""
    found = within.get()
    return Path.cwd() if found is None else found.root
