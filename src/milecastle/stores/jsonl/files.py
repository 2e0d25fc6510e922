"""What is asked of the disk, and nothing else asks: each call with its obligation.

- No symbolic link is followed below the root, where the system can tell.
- ``append`` writes all or raises; ``sync`` returns when the bytes are on the disk,
  ``sync_folder`` when the names are. ``put`` makes a whole file appear at once.
- Errors are the system's own: who calls translates them.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

__all__ = [
    "append",
    "check_folder",
    "make_folder",
    "make_root",
    "open_log",
    "put",
    "read_at",
    "read_some",
    "sync",
    "sync_folder",
]

_FLAGS: Final = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


def open_log(path: Path, *, create: bool = False) -> int:
    """Open a thread's file for reading and appending.

    If it, or one of the two folders that it is in, is a symbolic link, that is an ``OSError``.
    """
    for folder in (path.parent.parent, path.parent):
        check_folder(folder)
    flags = os.O_RDWR | os.O_APPEND | _FLAGS | (os.O_CREAT if create else 0)
    fd = os.open(path, flags, 0o666)
    try:
        _check_regular(path, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_regular(path: Path, fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode) or path.is_symlink():
        raise OSError(f"{path} is not an ordinary file")


if sys.platform == "win32":

    def read_some(fd: int, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes from ``offset``."""
        os.lseek(fd, offset, os.SEEK_SET)  # nobody else uses the handle: its log is guarded
        return os.read(fd, size)

else:

    def read_some(fd: int, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes from ``offset``."""
        return os.pread(fd, size, offset)


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Read ``size`` bytes from ``offset``; fewer only at the end of the file."""
    data = read_some(fd, size, offset)
    while len(data) < size:
        more = read_some(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def append(fd: int, data: bytes) -> None:
    """Append ``data``; after an error some of it may be there."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


if sys.platform == "darwin":
    import fcntl

    def sync(fd: int) -> None:
        """Return when the file's bytes, and what is needed to find them, are on the disk.

        The drive itself is asked: a plain sync leaves bytes in its cache here.
        """
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

elif sys.platform == "win32":

    def sync(fd: int) -> None:
        """Return when the file's bytes, and what is needed to find them, are on the disk."""
        os.fsync(fd)

else:

    def sync(fd: int) -> None:
        """Return when the file's bytes, and what is needed to find them, are on the disk."""
        os.fdatasync(fd)


def sync_folder(folder: Path) -> None:
    """Return when the names in the folder are on the disk. Windows does so by itself."""
    if sys.platform != "win32":
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def check_folder(folder: Path) -> bool:
    """Whether the folder is there. Anything else of that name, a link too, is an ``OSError``."""
    try:
        mode = os.lstat(folder).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(f"{folder} is not a folder; links are not followed")
    return True


def make_root(root: Path) -> None:
    """Make the folder and those above it unless they are there; the names of new ones are safe."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def make_folder(folder: Path) -> None:
    """Make the folder unless it is there."""
    if not check_folder(folder):
        try:
            folder.mkdir()
        except FileExistsError:
            check_folder(folder)


def put(
    path: Path,
    parts: Iterable[bytes],
    *,
    durable: bool = True,
    hold: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Make ``path`` hold exactly these bytes, from one moment to the next.

    ``hold`` is entered with the new file before it has its name, and left when the name is safe.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
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
