"""Where a store is: whether it is there, and how to name it without its password."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import click

from milecastle.errors import Unavailable

__all__ = ["check_place", "masked", "path_of"]


def masked(url: str) -> str:
    """A URL without the password in it."""
    bare = re.sub(r"(://[^/@:]*):[^/]*@", r"\1:***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", bare)


def path_of(url: str) -> Path | None:
    """The file or folder of a store that has one."""
    scheme, _, rest = url.partition("://")
    place = unquote(rest.partition("?")[0])
    if scheme == "sqlite" and place.startswith("/"):
        return Path(place[1:]).absolute() if len(place) > 1 else None
    if scheme == "file" and place:
        return Path(place[1:] if re.match("/[A-Za-z]:", place) else place).absolute()
    return None


def check_place(url: str) -> None:
    """Refuse a store that is not there: looking at one must not make one.

    Raises:
        Unavailable: there is no such file or folder.
    """
    if url.partition("://")[0] == "memory":
        raise click.UsageError("memory:// ends with its process: there is nothing to look at")
    path = path_of(url)
    if path is not None and not path.exists():
        raise Unavailable(
            f"there is no store at {path}: is the path right? A run makes it, looking does not"
        )
