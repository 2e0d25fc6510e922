"""A tenant's threads, without reading their logs: from the first line and the last few.

The last line leads to the nearest one with the thread's line in the list. A listing's cost grows
with the thread count, not with their histories.

A torn or damaged file does not prevent others from being listed. Its own thread is listed too, with
the part before the break, so a caller gets the error when using the thread. If that is nothing, it
is omitted. Either way a warning names file, line and byte.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from milecastle.disk import files
from milecastle.disk.locking import lock, unlock
from milecastle.disk.names import file_name
from milecastle.errors import Corrupted, FormatTooNew, MilecastleError
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.maintenance import Inspected, finding_of
from milecastle.stores.jsonl.lines import ROOT_CHECK, BrokenLine, last_line, line_at, lines
from milecastle.stores.jsonl.log import broken, decoded, open_header
from milecastle.stores.jsonl.shapes import CommitShape, ThreadShape, read_commit
from milecastle.support.printable import printable

SUFFIX: Final = ".jsonl"


class Found(NamedTuple):
    """A thread's file. Without a key, its first line is unreadable; ``error`` has the reason."""

    key: ThreadKey | None
    path: Path
    error: Corrupted | FormatTooNew | None = None

    def inspected(self, error: MilecastleError | None = None) -> Inspected:
        findings = () if error is None else (finding_of(error, str(self.path)),)
        return Inspected(thread=self.key.thread if self.key else None, findings=findings)


def found_in(folder: Path, tenant: str, *, timeout: float) -> Iterator[Found]:
    """Every thread file in a tenant's folder, by name, whether it can be read or not.

    A file without its own thread's name, such as a manual copy, does not count.
    """
    if not files.check_folder(folder.parent) or not files.check_folder(folder):
        return
    for path in sorted(folder.iterdir()):
        if path.suffix == SUFFIX and not path.name.startswith("."):
            try:
                key = _key_of(path, timeout)
            except (Corrupted, FormatTooNew) as error:
                yield Found(None, path, error)
                continue
            if key is not None and (key.tenant, file_name(key.thread)) == (tenant, path.stem):
                yield Found(key, path)


def keys_in(folder: Path, tenant: str, *, timeout: float) -> list[tuple[ThreadKey, Path]]:
    found: list[tuple[ThreadKey, Path]] = []
    for key, path, error in found_in(folder, tenant, timeout=timeout):
        if isinstance(error, FormatTooNew):
            raise error
        if error is not None:
            _warn(f"a log is omitted from the list: {error}")
        elif key is not None:
            found.append((key, path))
    return sorted(found)


def _key_of(path: Path, timeout: float) -> ThreadKey | None:
    with _Opened(path, timeout) as fd:
        try:
            first = fd is not None and next(lines(fd, 0, os.fstat(fd).st_size, ROOT_CHECK), None)
        except BrokenLine as error:
            raise broken(path, error, number=1) from None
        if not first:
            return None
        header = open_header(path, first)
        return ThreadKey(header.tenant, header.thread)


class Listed(NamedTuple):
    info: ThreadInfo
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, key: ThreadKey, shape: ThreadShape) -> Listed:
        return cls(shape.info(key), shape.tags)


def info_of(key: ThreadKey, path: Path, *, timeout: float) -> ThreadInfo | None:
    listed = listed_of(key, path, timeout=timeout)
    return listed.info if listed else None


def listed_of(key: ThreadKey, path: Path, *, timeout: float) -> Listed | None:
    with _Opened(path, timeout) as fd:
        if fd is None:
            return None
        try:
            found = _listed_at_the_end(key, path, fd)
        except (BrokenLine, Corrupted):
            found = None
        return found or _listed_from_the_start(key, path, fd)


def _listed_at_the_end(key: ThreadKey, path: Path, fd: int) -> Listed | None:
    size = os.fstat(fd).st_size
    line = last_line(fd, size) if size else None
    while line is not None and line.offset:
        commit = decoded(path, line, read_commit)
        if commit.thread is not None:
            return Listed.of(key, commit.thread)
        if commit.thread_at >= line.offset:
            raise BrokenLine(line.offset, torn=False)
        line = line_at(fd, commit.thread_at) if commit.thread_at else None
    return None


def _listed_from_the_start(key: ThreadKey, path: Path, fd: int) -> Listed | None:
    found: ThreadShape | None = None
    for commit in _commits_before_the_break(path, fd):
        found = commit.thread or found
    return None if found is None else Listed.of(key, found)


def _commits_before_the_break(path: Path, fd: int) -> Iterator[CommitShape]:
    try:
        for line in lines(fd, 0, os.fstat(fd).st_size, ROOT_CHECK):
            if line.offset:
                yield decoded(path, line, read_commit)
    except (BrokenLine, Corrupted) as error:
        told = broken(path, error) if isinstance(error, BrokenLine) else error
        _warn(f"a thread is listed as far as its log can be read: {told}")


def _warn(message: str) -> None:
    warnings.warn(printable(message), RuntimeWarning, stacklevel=4)


class _Opened:
    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._fd: int | None = None

    def __enter__(self) -> int | None:
        try:
            fd = files.open_log(self._path)
        except FileNotFoundError:
            return None
        try:
            lock(fd, shared=True, timeout=self._timeout)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return fd

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            unlock(self._fd)
            os.close(self._fd)
