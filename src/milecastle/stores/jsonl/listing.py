"""A tenant's threads, without reading their logs: from the first line and the last few.

The last line leads to the nearest line with run records, and so on back. What a listing costs
grows with the number of threads and of their runs, not with the length of their histories.

A file that is torn or damaged keeps no other from being listed. Its own thread is listed too, so
that whoever goes through a list meets the error when he uses it: with what stands before the
break. If that is nothing, it is left out. Either way a warning names file, line and byte.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from milecastle.errors import Corrupted
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.stores.jsonl import files
from milecastle.stores.jsonl.lines import ROOT_CHECK, BrokenLine, last_line, line_at, lines
from milecastle.stores.jsonl.locking import lock, unlock
from milecastle.stores.jsonl.names import file_name
from milecastle.stores.jsonl.opening import broken, decoded, open_header
from milecastle.stores.jsonl.shapes import RunShape, read_commit

__all__ = ["SUFFIX", "info_of", "keys_in"]

SUFFIX: Final = ".jsonl"


def keys_in(folder: Path, tenant: str, *, timeout: float) -> list[tuple[ThreadKey, Path]]:
    """The threads that have a file in a tenant's folder, by id.

    A file that does not bear its own thread's name, as a copy made by hand, is no thread's.
    """
    if not files.check_folder(folder.parent) or not files.check_folder(folder):
        return []
    found: list[tuple[ThreadKey, Path]] = []
    for path in folder.iterdir():
        if path.suffix == SUFFIX and not path.name.startswith("."):
            try:
                key = _key_of(path, timeout)
            except Corrupted as error:
                _warn(f"a log is left out of the list: {error}")
                continue
            if key is not None and (key.tenant, file_name(key.thread)) == (tenant, path.stem):
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


def info_of(key: ThreadKey, path: Path, *, timeout: float) -> ThreadInfo | None:
    """The thread with its newest run; ``None`` if it has none."""
    with _Opened(path, timeout) as fd:
        if fd is None:
            return None
        newest: dict[str, RunRecord] = {}
        try:
            for shape in _runs_from_the_end(path, fd):
                if shape.run_id not in newest:
                    newest[shape.run_id] = shape.record(key)
        except (BrokenLine, Corrupted):
            newest = {shape.run_id: shape.record(key) for shape in _runs_before_the_break(path, fd)}
    if not newest:
        return None
    run = max(newest.values(), key=lambda run: (run.started_at, run.run_id))
    return ThreadInfo.of(run)


def _runs_from_the_end(path: Path, fd: int) -> Iterator[RunShape]:
    size = os.fstat(fd).st_size
    line = last_line(fd, size) if size else None
    while line is not None and line.offset:
        commit = decoded(path, line, read_commit)
        yield from reversed(commit.runs)
        if commit.runs_at >= line.offset:
            raise BrokenLine(line.offset, torn=False)
        line = line_at(fd, commit.runs_at) if commit.runs_at else None


def _runs_before_the_break(path: Path, fd: int) -> Iterator[RunShape]:
    """Every record from the start on, as far as the log can be read, and a warning."""
    try:
        for line in lines(fd, 0, os.fstat(fd).st_size, ROOT_CHECK):
            if line.offset:
                yield from decoded(path, line, read_commit).runs
    except (BrokenLine, Corrupted) as error:
        told = broken(path, error) if isinstance(error, BrokenLine) else error
        _warn(f"a thread is listed as far as its log can be read: {told}")


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


class _Opened:
    """A file for a moment, under its shared lock; ``None`` if it is not there."""

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
