"""One thread's file: reading it, appending to it, putting another in its place.

Rules:

- Appending holds the file's lock exclusively from looking at the head to the end of the sync.
  New lines are read under the shared lock, so nothing is seen that is still being written.
- A file is replaced only under its exclusive lock. Who held another handle sees that the path
  leads elsewhere and opens it anew.
- A write that fails is taken back. A sync that fails poisons the log: what is on the disk is not
  known, and a later sync would say that all is well.
- The first append of a handle syncs the names too: who made the file may have died before.
- An empty file is no thread yet: its writer died before its first line.

A log is used by one thread of execution at a time; ``guard`` is for who shares it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from milecastle.errors import Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl import files
from milecastle.stores.jsonl.index import Index, Span
from milecastle.stores.jsonl.lines import (
    CHECK,
    CHECK_END,
    ROOT_CHECK,
    BrokenLine,
    frame,
    line_at,
    lines,
)
from milecastle.stores.jsonl.locking import lock, try_lock, unlock
from milecastle.stores.jsonl.opening import broken, decoded, open_header
from milecastle.stores.jsonl.shapes import FORMAT, CommitShape, HeaderShape, encode, read_commit

__all__ = ["Log", "new_log_id"]

T = TypeVar("T")

_NOWHERE = (0, 0)


class Log:
    """The file of one thread. ``index`` says what stands where, as far as it was read."""

    def __init__(self, path: Path, key: ThreadKey, *, timeout: float) -> None:
        self.path = path
        self._name = os.fsencode(path)  # needs no encoding at each look
        self.key = key
        self.guard = Lock()
        self.closed = False
        self.poisoned = False
        self.index = Index()
        self._timeout = timeout
        self._fd = -1
        self._identity = _NOWHERE
        self._names_are_safe = False

    def __del__(self) -> None:
        self.release()

    # -- reading

    def refresh(self) -> Index:
        """Read what was appended since the last look."""
        try:
            found = os.lstat(self._name)
        except FileNotFoundError:
            self.release()
            return self.index
        if self._identity != (found.st_dev, found.st_ino) and not self._open():
            return self.index
        if found.st_size != self.index.size or not self.index.size:
            lock(self._fd, shared=True, timeout=self._timeout)
            try:
                self._catch_up(os.fstat(self._fd).st_size)
            finally:
                unlock(self._fd)
        return self.index

    def read(self, span: Span, take: Callable[[CommitShape], T]) -> T:
        """What ``take`` makes of the commit that stands there."""
        try:
            line = line_at(self._fd, *span)
        except BrokenLine as error:
            raise broken(self.path, error) from None
        return decoded(self.path, line, lambda body: take(read_commit(body)))

    def _open(self, *, create: bool = False) -> bool:
        """Open what the path leads to now; ``False`` if that is nothing."""
        self.release()
        try:
            self._fd = files.open_log(self.path, create=create)
        except FileNotFoundError:
            return False
        found = os.fstat(self._fd)
        self._identity = found.st_dev, found.st_ino
        return True

    def _catch_up(self, size: int) -> None:
        if size < self.index.size:
            self.index = Index()
        index = self.index
        try:
            for line in lines(self._fd, index.size, size, index.check):
                if index.header is None:
                    index.begin(open_header(self.path, line, self.key), line.size, line.check)
                else:
                    commit = decoded(self.path, line, read_commit, number=index.count + 1)
                    index.absorb(commit, line.size, line.check)
        except BrokenLine as error:
            raise broken(self.path, error, number=index.count + 1) from None
        except ValueError as error:
            raise broken(self.path, BrokenLine(index.size, torn=False), why=str(error)) from None

    # -- writing

    def refuse_if_poisoned(self) -> None:
        """Raise ``Unavailable`` if a write failed in a way that nothing can be built on."""
        if self.poisoned:
            raise Unavailable(
                f"an earlier write to {self.path} failed in a way that leaves unknown what is on "
                "the disk: open the store anew, and read the thread before writing to it"
            )

    def take(self, *, create: bool = False) -> bool:
        """Lock the file and read all of it; ``False`` if there is none."""
        while True:
            if self._fd < 0 and not self._open(create=create):
                return False
            fd, index = self._fd, self.index
            if not try_lock(fd, False):
                lock(fd, timeout=self._timeout)
            try:
                found = os.lstat(self._name)
                if self._identity == (found.st_dev, found.st_ino):
                    size = found.st_size
                    if size != index.size or not size or not _ends(fd, size, index.check):
                        self._settle(size)
                    return True
            except FileNotFoundError:
                pass
            except BaseException:
                self.give_back()
                raise
            self.release()

    def _settle(self, size: int) -> None:
        """Make the index that of the file, whose lock is held."""
        if size == self.index.size:
            self.index = Index()
        self._catch_up(size)

    def give_back(self) -> None:
        """Let go of the lock, if the file is still open."""
        if self._fd >= 0:
            unlock(self._fd)

    def append(self, commit: CommitShape) -> None:
        """Write a commit, after the header if the file is new; durable on return.

        The lock is held.
        """
        index = self.index
        if index.header is None:
            self._begin(commit)
            return
        commit.runs_at = index.runs_at
        data, check = frame(encode(commit), index.check)
        self._write(data)
        index.absorb(commit, len(data), check)

    def _begin(self, commit: CommitShape) -> None:
        """Write the header and the first commit."""
        header = HeaderShape(FORMAT, self.key.tenant, self.key.thread, new_log_id())
        first, check = frame(encode(header), ROOT_CHECK)
        data, last = frame(encode(commit), check)
        self._write(first + data)
        self.index.begin(header, len(first), check)
        self.index.absorb(commit, len(data), last)

    def _write(self, data: bytes) -> None:
        fd = self._fd
        try:
            files.append(fd, data)
        except OSError:
            self._take_back()
            raise
        try:
            files.sync(fd)
            if not self._names_are_safe:
                self._sync_names()
        except OSError:
            self.poisoned = True
            self._take_back()
            raise

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.index.size)
        except OSError:
            self.poisoned = True

    def _sync_names(self) -> None:
        tenant = self.path.parent
        root = tenant.parent.parent
        for folder in (tenant, tenant.parent, root):
            files.sync_folder(folder)
        with suppress(PermissionError):  # then somebody else made the root
            files.sync_folder(root.parent)
        self._names_are_safe = True

    def replace(self, header: HeaderShape, commits: Iterable[CommitShape]) -> None:
        """Put a file with these commits in the place of this one, whose lock is held."""
        try:
            files.put(self.path, _framed(header, commits), hold=self._hold)
        except OSError:
            found = os.lstat(self._name)
            self.poisoned = self._identity != (found.st_dev, found.st_ino)
            raise
        self.release()

    @contextmanager
    def _hold(self, fd: int) -> Generator[None, None, None]:
        """Keep others from the new file until its name is safe."""
        lock(fd, timeout=self._timeout)
        try:
            yield
        finally:
            unlock(fd)  # closing would not do, if a child was forked meanwhile

    def release(self) -> None:
        """Close the file and forget what was read."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # what was promised is synced
                os.close(fd)
        self._identity = _NOWHERE
        self._names_are_safe = False
        self.index = Index()


def _ends(fd: int, size: int, check: bytes) -> bool:
    """Whether a file of ``size`` bytes ends in a line with this check."""
    return files.read_some(fd, CHECK, size - CHECK_END) == check


def new_log_id() -> str:
    """What tells a log from every other."""
    return os.urandom(8).hex()


def _framed(header: HeaderShape, commits: Iterable[CommitShape]) -> Generator[bytes, None, None]:
    data, check = frame(encode(header), Index().check)
    yield data
    offset, runs_at = len(data), 0
    for commit in commits:
        commit.runs_at = runs_at
        data, check = frame(encode(commit), check)
        if commit.runs:
            runs_at = offset
        offset += len(data)
        yield data
