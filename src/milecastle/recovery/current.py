"""The file run that the calling node belongs to."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["CurrentRun", "current", "root", "within"]


class CurrentRun(msgspec.Struct, frozen=True):
    """Where a node runs. ``lock`` is the file whose lock keeps other runs away."""

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
