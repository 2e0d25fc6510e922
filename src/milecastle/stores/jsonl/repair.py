"""Repairing a log whose last line is torn.

The whole file is copied, then the torn line is removed. No complete line is ever dropped:
one that lacks only its newline gets it, and a damaged log is not changed. The copy stays until its
thread is deleted.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from milecastle.disk import files
from milecastle.disk.locking import lock, unlock
from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl.lines import ROOT_CHECK, BrokenLine, lines
from milecastle.stores.jsonl.log import broken, open_header

_MARK: Final = ".torn-"
_STAMP: Final = "%Y%m%dT%H%M%S%fZ"
_COPY: Final = re.compile(r"(.+)\.torn-[0-9]{8}T[0-9]{12}Z")
_HALF: Final = re.compile(r"\.(.+)\.torn-[0-9]{8}T[0-9]{12}Z\.tmp")


def copies_of(path: Path) -> list[Path]:
    """A thread file's saved copies, including unfinished ones.

    A stamp has capital letters and ends the name, as no thread's file name does.
    """
    if not files.check_folder(path.parent):
        return []
    with os.scandir(path.parent) as found:
        names = [entry.name for entry in found if _MARK in entry.name]
    return [path.with_name(name) for name in names if _copied(name) == path.name]


def _copied(name: str) -> str | None:
    found = _COPY.fullmatch(name) or _HALF.fullmatch(name)
    return found and found[1]


def repair_file(path: Path, key: ThreadKey | None = None, *, timeout: float = 10.0) -> Path | None:
    """Repair a thread's file; return the saved copy, or ``None`` if there was nothing to do.

    Raises:
        Corrupted: the file is damaged, or is not the one for ``key``.
        Unavailable: others hold the file.
    """
    try:
        fd = files.open_log(path)
    except FileNotFoundError:
        return None
    try:
        lock(fd, timeout=timeout)
        try:
            return _repair(path, fd, key)
        finally:
            unlock(fd)
    finally:
        os.close(fd)


def _repair(path: Path, fd: int, key: ThreadKey | None) -> Path | None:
    size = os.fstat(fd).st_size
    count, previous = 0, ROOT_CHECK
    try:
        for line in lines(fd, 0, size, ROOT_CHECK):
            if count == 0:
                open_header(path, line, key)
            count += 1
            previous = line.check
    except BrokenLine as error:
        if not error.torn:
            raise broken(path, error, number=count + 1) from None
        copy = _keep_copy(path, fd, size)
        _mend(fd, error.offset, size, previous)
        return copy
    return None


def _keep_copy(path: Path, fd: int, size: int) -> Path:
    copy = path.with_name(f"{path.name}{_MARK}{datetime.now(UTC).strftime(_STAMP)}")
    chunk = 1 << 20
    files.put(copy, (files.read_at(fd, chunk, offset) for offset in range(0, size, chunk)))
    return copy


def _mend(fd: int, offset: int, size: int, previous: bytes) -> None:
    files.append(fd, b"\n")
    try:
        for _ in lines(fd, offset, size + 1, previous):
            pass
    except BrokenLine:
        os.ftruncate(fd, offset)
    files.sync(fd)
