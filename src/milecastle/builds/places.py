"""Where declared files may be: outputs inside the root, and nowhere that is not theirs.

Before a node runs, its declared outputs are removed. So an output may be neither the root nor the
workspace, nor contain anything that some node reads, nor be behind a link that points elsewhere.
Nothing is remembered: a path is checked at each use, and whatever is removed or made is removed or
made in a folder that is held open, so that a link put in the way later is not followed.

A file is copied by a clone if the disk can, by a link if asked for, else byte by byte. A clone
shares the disk's blocks until one side is written to. A hard link shares the file itself: a write
in place changes both.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from milecastle.disk.files import PRIVATE_FILE, append, sync
from milecastle.errors import FileRefused

_BY_DESCRIPTOR: Final = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")

_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)


class Spot(NamedTuple):
    """A path in a folder that is held open; ``folder`` is ``None`` where no system call takes one.

    Both together are what ``dir_fd`` calls want.
    """

    path: str
    folder: int | None

    def beside(self, name: str) -> Spot:
        """Another name in the same folder."""
        return Spot(os.path.join(os.path.dirname(self.path), name), self.folder)  # noqa: PTH118, PTH120

    def below(self, path: str) -> Spot:
        """Something in the folder that is here; an empty path is the folder itself."""
        return Spot(f"{self.path}/{path}" if path else self.path, self.folder)

    def is_folder(self) -> bool:
        """Whether a folder is here, and not a link to one."""
        try:
            found = os.stat(self.path, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return stat.S_ISDIR(found.st_mode)

    def remove(self) -> None:
        """Remove whatever is here; for a link, only the link itself."""
        if self.is_folder():
            shutil.rmtree(self.path, dir_fd=self.folder)
            return
        try:
            os.unlink(self.path, dir_fd=self.folder)
        except FileNotFoundError:
            return

    def replace(self, target: Spot) -> None:
        """Give what is here another name in the same folder, in place of what has that name."""
        os.replace(self.path, target.path, src_dir_fd=self.folder, dst_dir_fd=target.folder)


class Places:
    """Finds the files of a root, and refuses to leave it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def output(self, path: str, node: str) -> Path:
        """Where an output is now; ``FileRefused`` if that is not inside the root."""
        self._folder_of(path, node)
        return self.root / path

    @contextmanager
    def holding(self, path: str, node: str) -> Generator[Spot]:
        """The place of an output, in its folder, which is made if need be and held open."""
        folder = self._folder_of(path, node)
        name = parts_of(path)[-1]
        if not _BY_DESCRIPTOR:
            folder.mkdir(parents=True, exist_ok=True)
            yield Spot(str(folder / name), None)
            return
        try:
            held = _open_below(self.root, folder.relative_to(self.root).parts)
        except OSError as error:
            raise FileRefused(
                f"the folder of the output '{path}' of node '{node}' cannot be opened: "
                f"{error.strerror}; every part of the path to it must be a folder",
                file=path,
                node=node,
            ) from error
        try:
            yield Spot(name, held)
        finally:
            os.close(held)

    def clear(self, path: str, node: str) -> None:
        """Remove an output before it is made again, and make its folder."""
        with self.holding(path, node) as spot:
            spot.remove()

    def _folder_of(self, path: str, node: str) -> Path:
        """The folder of an output without links, as it is at this moment."""
        folder = self.root.joinpath(*parts_of(path)).parent.resolve()
        if not folder.is_relative_to(self.root):
            raise FileRefused(
                f"the output '{path}' of node '{node}' is behind a symbolic link that points "
                f"outside {self.root}: declare a path inside it",
                file=path,
                node=node,
            )
        return folder


def _open_below(root: Path, parts: tuple[str, ...]) -> int:
    """A folder below the root, opened step by step and made if need be; no link is followed."""
    held = os.open(root, _FOLDER)
    for part in parts:
        try:
            try:
                below = os.open(part, _FOLDER | _NO_LINK, dir_fd=held)
            except FileNotFoundError:
                with suppress(FileExistsError):  # another node may make it at the same moment
                    os.mkdir(part, dir_fd=held)
                below = os.open(part, _FOLDER | _NO_LINK, dir_fd=held)
        finally:
            os.close(held)
        held = below
    return held


def problem_of(path: str, workspace: tuple[str, ...] | None) -> str | None:
    """Why a path cannot be an output, or ``None``. ``workspace`` is where that is in the root."""
    parts = parts_of(path)
    if Path(path).is_absolute() or parts[0] == "..":
        return "is outside the root: declare a path inside it"
    if parts == (".",):
        return "is the root itself: declare a file or a folder inside it"
    if workspace is not None and _meet(parts, workspace):
        return "is inside the workspace, or contains it: declare another path"
    return None


def parts_of(path: str) -> tuple[str, ...]:
    """A path without detours, part by part."""
    return tuple(os.path.normpath(path).replace("\\", "/").split("/"))


def inside(folder: Path, root: Path) -> tuple[str, ...] | None:
    """Where a folder is in the root, or ``None`` if it is not."""
    relative = parts_of(os.path.relpath(os.path.realpath(folder), os.path.realpath(root)))
    return None if relative[0] == ".." else relative


def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    short = min(len(one), len(other))
    return one[:short] == other[:short]


_CHUNK: Final = 1 << 20

_FICLONE: Final = 0x40049409

_FLAGS: Final = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)

_READ: Final = os.O_RDONLY | _FLAGS

_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS


def bring(source: Path, target: Spot, *, mode: int, link: bool = False) -> str:
    """Make ``target`` hold what ``source`` holds; the SHA-256 of what it holds now.

    A hard link has the mode of the source, and anything else the one that is given.
    """
    if link:
        try:
            os.link(source, target.path, dst_dir_fd=target.folder)
        except OSError:
            pass  # another disk, or one that has no links
        else:
            made = os.open(target.path, _READ, dir_fd=target.folder)
            try:
                return _hash(made)
            finally:
                os.close(made)
    return copy_hashed(source, target, mode=mode, durable=False)


def copy_hashed(source: Path, target: Spot, *, mode: int, durable: bool) -> str:
    """Copy a file and return the SHA-256 of what was written; nothing else reads it meanwhile."""
    given = os.open(source, _READ)
    try:
        made = os.open(target.path, _WRITE, PRIVATE_FILE, dir_fd=target.folder)
        try:
            digest = _hash(made) if _clone(given, made) else _copy(given, made)
            _set_mode(made, target, mode)
            if durable:
                sync(made)
            return digest
        finally:
            os.close(made)
    finally:
        os.close(given)


def write_hashed(target: Path, chunks: Iterable[bytes], *, mode: int) -> str:
    """Write a new file, durably, and return the SHA-256 of what was written."""
    made = os.open(target, _WRITE, PRIVATE_FILE)
    digest = sha256()
    try:
        for data in chunks:
            digest.update(data)
            append(made, data)
        _set_mode(made, Spot(str(target), None), mode)
        sync(made)
    finally:
        os.close(made)
    return digest.hexdigest()


def _copy(given: int, made: int) -> str:
    digest = sha256()
    while data := os.read(given, _CHUNK):
        digest.update(data)
        append(made, data)
    return digest.hexdigest()


def _hash(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    digest = sha256()
    while data := os.read(fd, _CHUNK):
        digest.update(data)
    return digest.hexdigest()


if sys.platform == "win32":

    def _set_mode(made: int, target: Spot, mode: int) -> None:
        os.chmod(target.path, mode)  # noqa: PTH101

else:

    def _set_mode(made: int, target: Spot, mode: int) -> None:
        os.fchmod(made, mode)


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
