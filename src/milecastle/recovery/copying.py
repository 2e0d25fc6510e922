"""Bringing a file from one place to another: a clone if the disk can, a link if it is safe, a copy.

A clone shares the disk's blocks until one side is written to. A hard link shares the file itself:
whoever writes to it in place writes to both, so it is made only if that was asked for.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Final

from milecastle.stores.jsonl.files import append, sync

__all__ = ["bring", "copy_hashed"]

_CHUNK: Final = 1 << 20
_FICLONE: Final = 0x40049409
_READ: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def bring(source: Path, target: Path, *, link: bool = False) -> str:
    """Make ``target`` hold what ``source`` holds; the SHA-256 of what it holds now."""
    if link:
        try:
            target.hardlink_to(source)
        except OSError:
            pass  # another disk, or one that has no links
        else:
            return _hash(target)
    return copy_hashed(source, target, durable=False)


def copy_hashed(source: Path, target: Path, *, durable: bool) -> str:
    """Copy a file and give the SHA-256 of what was written."""
    given = os.open(source, _READ)
    try:
        made = os.open(target, _WRITE, 0o666)
        try:
            digest = _hash(target) if _clone(given, made) else _copy(given, made)
            if durable:
                sync(made)
            return digest
        finally:
            os.close(made)
    finally:
        os.close(given)


def _copy(given: int, made: int) -> str:
    digest = sha256()
    while data := os.read(given, _CHUNK):
        digest.update(data)
        append(made, data)
    return digest.hexdigest()


def _hash(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


if sys.platform == "linux":

    def _clone(given: int, made: int) -> bool:
        import fcntl

        try:
            fcntl.ioctl(made, _FICLONE, given)
        except OSError:
            return False
        return True

else:

    def _clone(given: int, made: int) -> bool:
        return False
