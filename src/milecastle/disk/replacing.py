"""Atomic file writes, on disk when the call returns.

Several processes may write the same file at once: each has its own temporary file, and the last
rename wins. New files and folders are accessible only to their owner.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from milecastle.disk.files import PRIVATE_FILE, PRIVATE_FOLDER, append, sync, sync_folder

TEMPORARY: Final = ".milecastle-tmp-"
"""The prefix of temporary files; code that lists a folder skips them."""


def make_folders(folder: Path) -> None:
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for wanted in reversed(missing):
        wanted.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        sync_folder(wanted.parent)


def put(path: Path, data: bytes, *, durable: bool = True) -> None:
    with replacing(path, durable=durable) as temporary:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        try:
            append(fd, data)
            if durable:
                sync(fd)
        finally:
            os.close(fd)


def temporary_name() -> str:
    return f"{TEMPORARY}{os.getpid()}-{os.urandom(6).hex()}"


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Generator[Path]:
    """A temporary name next to ``path``; the written file replaces it, or is removed."""
    temporary = path.with_name(temporary_name())
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)
