"""One thread's file: reading, appending, replacing.

Rules:

- An append holds the file's lock exclusively from reading the head to the end of the sync. New
  lines are read under the shared lock, so nothing is read that is still being written.
- A file is replaced only under its exclusive lock. Another handle's owner sees the path
  leads elsewhere and reopens it.
- A failed write is undone. A failed sync poisons the log: the state of the disk is unknown, and a
  later sync would report success.
- A signal may interrupt any line. Whatever interrupts a write or the reading of lines, the index is
  discarded, and the file is read again.
- The first append of a handle also syncs the names: the process that created the file may have died
  before.
- An empty file is not a thread yet: its writer died before its first line.

Only one thread uses a log at a time; ``guard`` is for sharing it.

Every error for a line that is not whole names the file, the line and the byte where it begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from milecastle.disk import files
from milecastle.disk.locking import lock, try_lock, unlock
from milecastle.errors import Corrupted, FormatTooNew, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.ports.formats import unreleased
from milecastle.stores.jsonl.index import Index, Span
from milecastle.stores.jsonl.lines import (
    CHECK,
    CHECK_END,
    ROOT_CHECK,
    BrokenLine,
    Line,
    frame,
    line_at,
    lines,
)
from milecastle.stores.jsonl.shapes import (
    FORMAT,
    CommitShape,
    HeaderShape,
    encode,
    read_commit,
    read_format,
    read_header,
)

T = TypeVar("T")


def open_header(path: Path, line: Line, key: ThreadKey | None = None) -> HeaderShape:
    """A file's header, if it has this format and belongs to this thread."""
    found = decoded(path, line, read_format, number=1)
    if found.unreleased:
        raise unreleased(str(path))
    if found.format > FORMAT:
        raise FormatTooNew(found=found.format, supported=FORMAT, place=str(path))
    header = decoded(path, line, read_header, number=1)
    if key is not None and (header.tenant, header.thread) != (key.tenant, key.thread):
        raise Corrupted("the file belongs to another thread", place=_place(path, 0, 1))
    return header


def decoded(path: Path, line: Line, decode: Callable[[bytes], T], number: int | None = None) -> T:
    try:
        return decode(line.body)
    except (ValueError, LookupError) as error:
        raise Corrupted(
            f"a line of the log cannot be decoded: {error}", place=_place(path, line.offset, number)
        ) from None


def broken(path: Path, line: BrokenLine, number: int | None = None, why: str = "") -> Corrupted:
    place = _place(path, line.offset, number)
    if line.torn:
        return Corrupted(
            "the last line of the log is torn: its writer died while writing it, and it was never "
            "acknowledged; `milecastle repair` or `JsonlStore.repair_thread` keeps a copy and "
            "cuts it off, and the thread can be resumed",
            place=place,
        )
    reason = why or "a line differs from what was written"
    return Corrupted(f"the log is damaged: {reason}; restore it from a backup", place=place)


def _place(path: Path, offset: int, number: int | None) -> str:
    number = _number_of(path, offset) if number is None else number
    return f"{path}, line {number}, byte {offset}"


def _number_of(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return file.read(offset).count(b"\n") + 1


_NOWHERE = (0, 0)


class LogFile:
    _fd = -1

    def __init__(self, path: Path, key: ThreadKey, *, timeout: float) -> None:
        self.path = path
        self._name = os.fsencode(path)  # needs no encoding at each look
        self.key = key
        self.guard = Lock()
        self.closed = False
        self.poisoned = False
        self.index = Index()
        self._timeout = timeout
        self._identity = _NOWHERE
        self._names_are_safe = False

    def __del__(self) -> None:
        self.release()

    # -- reading

    def refresh(self) -> None:
        try:
            found = os.lstat(self._name)
        except FileNotFoundError:
            self.release()
            return
        if self._identity != (found.st_dev, found.st_ino) and not self._open():
            return
        if found.st_size != self.index.size or not self.index.size:
            try:
                lock(self._fd, shared=True, timeout=self._timeout)
                self._catch_up(os.fstat(self._fd).st_size)
            finally:
                self.give_back()

    def read(self, span: Span, take: Callable[[CommitShape], T]) -> T:
        try:
            line = line_at(self._fd, *span)
        except BrokenLine as error:
            raise broken(self.path, error) from None
        return decoded(self.path, line, lambda body: take(read_commit(body)))

    def commits(self) -> Iterator[CommitShape]:
        index = self.index
        for line in lines(self._fd, 0, index.size, ROOT_CHECK):
            if line.offset:
                yield decoded(self.path, line, read_commit)

    def _open(self, *, create: bool = False) -> bool:
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
        self.index = Index()
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
        self.index = index

    # -- writing

    def refuse_if_poisoned(self) -> None:
        if self.poisoned:
            raise Unavailable(
                f"an earlier write to {self.path} failed, and it is unknown what is on disk: "
                "reopen the store and read the thread before writing to it"
            )

    def take(self, *, create: bool = False) -> bool:
        """Lock the whole file and read it; ``False`` if there is none."""
        while True:
            if self._fd < 0 and not self._open(create=create):
                return False
            fd, index = self._fd, self.index
            try:
                if not try_lock(fd, False):
                    lock(fd, timeout=self._timeout)
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
        if size == self.index.size:
            self.index = Index()
        self._catch_up(size)

    def give_back(self) -> None:
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
        commit.thread_at = index.thread_at
        data, check = frame(encode(commit), index.check)
        try:
            self._write(data)
            index.absorb(commit, len(data), check)
        except BaseException:
            self.index = Index()
            raise

    def _begin(self, commit: CommitShape) -> None:
        header = HeaderShape(FORMAT, self.key.tenant, self.key.thread, new_log_id())
        first, check = frame(encode(header), ROOT_CHECK)
        data, last = frame(encode(commit), check)
        try:
            self._write(first + data)
            self.index.begin(header, len(first), check)
            self.index.absorb(commit, len(data), last)
        except BaseException:
            self.index = Index()
            raise

    def _write(self, data: bytes) -> None:
        fd = self._fd
        try:
            files.append(fd, data)
        except BaseException:
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
        except BaseException:
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
        with suppress(PermissionError):  # then another process created the root
            files.sync_folder(root.parent)
        self._names_are_safe = True

    def replace(self, header: HeaderShape, commits: Iterable[CommitShape]) -> None:
        try:
            files.put(self.path, _framed(header, commits), hold=self._hold)
        except OSError:
            found = os.lstat(self._name)
            self.poisoned = self._identity != (found.st_dev, found.st_ino)
            raise
        self.release()

    @contextmanager
    def _hold(self, fd: int) -> Generator[None, None, None]:
        """Lock others out of the new file until its name is durable."""
        lock(fd, timeout=self._timeout)
        try:
            yield
        finally:
            unlock(fd)  # closing would not do, if a child was forked meanwhile

    def release(self) -> None:
        self._identity = _NOWHERE
        self._names_are_safe = False
        self.index = Index()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # what was promised is synced
                os.close(fd)


def _ends(fd: int, size: int, check: bytes) -> bool:
    return files.read_some(fd, CHECK, size - CHECK_END) == check


def new_log_id() -> str:
    return os.urandom(8).hex()


def _framed(header: HeaderShape, commits: Iterable[CommitShape]) -> Generator[bytes, None, None]:
    data, check = frame(encode(header), Index().check)
    yield data
    offset, thread_at = len(data), 0
    for commit in commits:
        commit.thread_at = thread_at
        data, check = frame(encode(commit), check)
        if commit.thread is not None:
            thread_at = offset
        offset += len(data)
        yield data
