"""All file system calls of the stores, each with its guarantee. Nothing else touches the disk.

- No symbolic link is followed below the root, if the system supports that.
- ``append`` writes all or raises; ``sync`` returns when the bytes are on disk, ``sync_folder`` when
  the names are. ``put`` creates a file atomically.
- New files and folders are accessible only to their owner; existing modes are not changed.
- Errors are the system's own: the caller translates them.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700

_FLAGS: Final = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


def open_log(path: Path, *, create: bool = False) -> int:
    """Open a thread's file for reading and appending.

    If it, or one of the two folders it is in, is a symbolic link, that is an ``OSError``.
    """
    for folder in (path.parent.parent, path.parent):
        check_folder(folder)
    flags = os.O_RDWR | os.O_APPEND | _FLAGS | (os.O_CREAT if create else 0)
    fd = os.open(path, flags, PRIVATE_FILE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or path.is_symlink():
            raise OSError(f"{path} is not an ordinary file")
    except BaseException:
        os.close(fd)
        raise
    return fd


if sys.platform == "win32":

    def read_some(fd: int, size: int, offset: int) -> bytes:
        os.lseek(fd, offset, os.SEEK_SET)  # the handle is not shared: its log is guarded
        return os.read(fd, size)

else:

    def read_some(fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Read ``size`` bytes from ``offset``; fewer only at the file's end."""
    data = read_some(fd, size, offset)
    while len(data) < size:
        more = read_some(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def append(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


if sys.platform == "darwin":
    import fcntl

    def sync(fd: int) -> None:
        """Return when the file's bytes and metadata are on disk.

        This flushes the drive itself: here a plain sync leaves bytes in its cache.
        """
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

elif sys.platform == "win32":

    def sync(fd: int) -> None:
        os.fsync(fd)

else:

    def sync(fd: int) -> None:
        os.fdatasync(fd)


def sync_folder(folder: Path) -> None:
    if sys.platform != "win32":
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def check_folder(folder: Path) -> bool:
    """True if the folder exists.

    Anything else with that name, including a link, is an ``OSError``.
    """
    try:
        mode = os.lstat(folder).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(f"{folder} is not a folder (links are not followed)")
    return True


def make_root(root: Path) -> None:
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        sync_folder(folder.parent)


def make_folder(folder: Path) -> None:
    if not check_folder(folder):
        try:
            folder.mkdir(mode=PRIVATE_FOLDER)
        except FileExistsError:
            check_folder(folder)


def put(
    path: Path,
    parts: Iterable[bytes],
    *,
    durable: bool = True,
    hold: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Replace the contents of ``path`` atomically.

    ``hold`` is entered with the new file before it has its name, and left when the name is durable.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, PRIVATE_FILE)
    try:
        with hold(fd):
            for part in parts:
                append(fd, part)
            if durable:
                sync(fd)
            temporary.replace(path)
            if durable:
                sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
