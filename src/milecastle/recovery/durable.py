"""Writing so that a file is whole or not there, and on the disk when the call returns.

Several processes may write the same file at once: each has a temporary file of its own, and the
last rename wins.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from milecastle.stores.jsonl.files import append, sync, sync_folder

__all__ = ["TEMPORARY", "make_folders", "put", "replacing"]

TEMPORARY: Final = ".milecastle-tmp-"
"""How the names of temporary files begin; whoever lists a folder leaves them out."""


def make_folders(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for wanted in reversed(missing):
        wanted.mkdir(exist_ok=True)
        sync_folder(wanted.parent)


def put(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Make ``path`` hold exactly these bytes, from one moment to the next."""
    with replacing(path, durable=durable) as temporary:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            append(fd, data)
            if durable:
                sync(fd)
        finally:
            os.close(fd)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Generator[Path]:
    """A name beside ``path`` to write to; what was written takes its place, or goes."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{os.urandom(6).hex()}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)
