"""Declared files: where they may be, how they are copied, and their hashes.

Before a node runs, its declared outputs are removed. So an output may be neither the root nor the
workspace, nor contain anything some node reads, nor be behind a link pointing elsewhere.
Nothing is remembered: a path is checked at each use, and whatever is removed or made is removed or
made in a folder held open, so a link put in the way later is not followed.

A file is copied by a clone if the disk can, by a link if asked for, else byte by byte. A clone
shares the disk's blocks until one side is written to. A hard link shares the file itself: a write
in place changes both.

A file's hash is the SHA-256 of its bytes, with ``+x`` behind it if it can be executed; that
of a folder covers the names and hashes of everything in it. Other modes do not count: they depend
on the user's umask.

A file's hash is taken from the index if its inode, size and both times are the same, as version
control and build tools do. A file touched less than two seconds before it was hashed is
not noted: within the grain of a disk's clock it could change again unseen.

An entry of the cache may come from elsewhere: a shared folder, a download. So an output's items are
trusted only if they make up its hash, and each is named inside it: in a folder that is an item too,
and never behind a link.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import dropwhile
from pathlib import Path
from time import time_ns
from typing import Final, NamedTuple

import msgspec

from milecastle.builds.records import Artifact, CacheEntry, Item, NodeCheckpoint
from milecastle.disk.files import PRIVATE_FILE, append, sync
from milecastle.disk.replacing import put
from milecastle.errors import FileRefused
from milecastle.support.prepared import prepared

_BY_DESCRIPTOR: Final = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")

_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)


class Spot(NamedTuple):
    """A path in an open folder; ``folder`` is ``None`` where no system call takes one.

    Both together are arguments for ``dir_fd`` calls.
    """

    path: str
    folder: int | None

    def beside(self, name: str) -> Spot:
        return Spot(os.path.join(os.path.dirname(self.path), name), self.folder)  # noqa: PTH118, PTH120

    def below(self, path: str) -> Spot:
        return Spot(f"{self.path}/{path}" if path else self.path, self.folder)

    def is_folder(self) -> bool:
        try:
            found = os.stat(self.path, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return stat.S_ISDIR(found.st_mode)

    def remove(self) -> None:
        """Remove anything here; for a link, only the link itself."""
        if self.is_folder():
            shutil.rmtree(self.path, dir_fd=self.folder)
            return
        with suppress(FileNotFoundError):
            os.unlink(self.path, dir_fd=self.folder)

    def replace(self, target: Spot) -> None:
        os.replace(self.path, target.path, src_dir_fd=self.folder, dst_dir_fd=target.folder)


class Places:
    """Finds files below a root, and refuses to leave it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def output(self, path: str, node: str) -> Path:
        self._folder_of(path, node)
        return self.root / path

    @contextmanager
    def holding(self, path: str, node: str) -> Generator[Spot]:
        """An output's place in its folder, created if needed and held open."""
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
        with self.holding(path, node) as spot:
            spot.remove()

    def _folder_of(self, path: str, node: str) -> Path:
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
    """A folder below the root, opened step by step and created if needed; no link is followed."""
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
    """Reason a path cannot be an output, or ``None``. ``workspace`` is its place in the root."""
    parts = parts_of(path)
    if Path(path).is_absolute() or parts[0] == "..":
        return "is outside the root: declare a path inside it"
    if parts == (".",):
        return "is the root itself: declare a file or a folder inside it"
    if workspace is not None and parts[: len(workspace)] == workspace[: len(parts)]:
        return "is inside the workspace, or contains it: declare another path"
    return None


def parts_of(path: str) -> tuple[str, ...]:
    return tuple(os.path.normpath(path).replace("\\", "/").split("/"))


def inside(folder: Path, root: Path) -> tuple[str, ...] | None:
    relative = parts_of(os.path.relpath(os.path.realpath(folder), os.path.realpath(root)))
    return None if relative[0] == ".." else relative


_CHUNK: Final = 1 << 20

_FICLONE: Final = 0x40049409

_FLAGS: Final = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)

_READ: Final = os.O_RDONLY | _FLAGS

_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS


def bring(source: Path, target: Spot, *, mode: int, link: bool = False) -> str:
    """Copy ``source`` to ``target``; return the result's SHA-256.

    A hard link has the source's mode, and anything else the given one.
    """
    if link:
        try:
            os.link(source, target.path, dst_dir_fd=target.folder)
            made = os.open(target.path, _READ, dir_fd=target.folder)
        except OSError:  # another disk, or one that has no links
            return copy_hashed(source, target, mode=mode, durable=False)
        try:
            return _hash(made)
        finally:
            os.close(made)
    return copy_hashed(source, target, mode=mode, durable=False)


def copy_hashed(source: Path, target: Spot, *, mode: int, durable: bool) -> str:
    """Copy a file; return the SHA-256 of the written bytes. Nothing else reads it meanwhile."""
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
    """Write a new file durably; return the SHA-256 of the written bytes."""
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


_HASH_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe is refused, not waited for
)

_EXECUTABLE: Final = "+x"

_MODES: Final = 0o777


class Links(Exception):
    """Neither a file nor a folder was found at ``path``."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is {what}")


def hash_bytes(data: bytes) -> str:
    return sha256(data).hexdigest()


def read_hash(path: str) -> tuple[str, int, int]:
    """A file's SHA-256, size and mode; a link is not followed."""
    fd = os.open(path, _HASH_FLAGS)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise Links(path, "not an ordinary file")
        data = os.read(fd, _CHUNK)
        digest, size = sha256(data), len(data)
        while len(data) == _CHUNK:
            data = os.read(fd, _CHUNK)
            digest.update(data)
            size += len(data)
        return digest.hexdigest(), size, mode
    finally:
        os.close(fd)


def look_into(path: str) -> tuple[Item, ...]:
    """Everything at a path: one item for a file, many for a folder.

    Raises:
        FileNotFoundError: nothing is there. Links: it is, or contains, something else, or a link
        that points outside.
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISDIR(mode):
        return (Item("", mode=mode & _MODES, folder=True), *_inside(path, ""))
    if stat.S_ISLNK(mode):
        raise Links(path, "a symbolic link")
    return (_file(path, ""),)


def hash_items(items: tuple[Item, ...]) -> str:
    if len(items) == 1 and not items[0].folder:
        return items[0].hash + (_EXECUTABLE if items[0].mode & stat.S_IXUSR else "")
    facts = [
        (one.path, one.hash, one.size, bool(one.mode & stat.S_IXUSR) and not one.folder, one.link)
        for one in items
    ]
    return "tree-" + hash_bytes(msgspec.json.encode(facts))


def hash_of(path: str) -> str | None:
    try:
        found, _, mode = read_hash(path)
    except FileNotFoundError:
        return None
    except (OSError, Links):  # a folder, or an error that the next look repeats
        try:
            return hash_items(look_into(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found + _EXECUTABLE if mode & stat.S_IXUSR else found


def _file(path: str, name: str) -> Item:
    found, size, mode = read_hash(path)
    return Item(name, hash=found, size=size, mode=mode & _MODES)


def _inside(path: str, prefix: str) -> Iterable[Item]:
    with os.scandir(path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_symlink():
            target = os.readlink(entry.path)  # noqa: PTH115 - as it is written
            if leads_out(target, name):
                raise Links(entry.path, "a symbolic link that points outside its folder")
            yield Item(name, link=target)
        elif entry.is_dir():
            mode = entry.stat(follow_symlinks=False).st_mode & _MODES
            yield Item(name, mode=mode, folder=True)
            yield from _inside(entry.path, f"{name}/")
        else:
            yield _file(entry.path, name)


def leads_out(target: str, name: str) -> bool:
    """True if a link at ``name`` in a folder may point outside it.

    It goes up first, by no more than there is, and only then down: after a way down through
    another link, up would be somewhere else.
    """
    parts = target.replace(os.sep, "/").split("/")
    down = list(dropwhile(lambda part: part == "..", parts))
    ups = len(parts) - len(down)
    return os.path.isabs(target) or ".." in down or ups > name.count("/")  # noqa: PTH117


def task_hash(
    *,
    node: str,
    code_version: str,
    parameters: str,
    input: str,
    seen: str,
    inputs: Mapping[str, str],
    upstream: Mapping[str, str],
    outputs: Iterable[str],
) -> str:
    """Hash over a task's dependencies and declared outputs.

    ``input`` is the digest for the run's input and ``seen`` the state's, if they count.
    """
    facts = (
        node,
        code_version,
        parameters,
        input,
        seen,
        sorted(inputs.items()),
        sorted(upstream.items()),
        sorted(outputs),
    )
    return hash_bytes(msgspec.json.encode(facts))


_GRAIN: Final = 2_000_000_000


@prepared
class _Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    signature: tuple[int, int, int, int, int]
    hash: str


class StatIndex:
    """File hashes by path. Losing it costs only time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = _read(path)
        self._fresh: dict[str, _Known] = {}

    def hash_of(self, path: str, *, follow: bool = False) -> str | None:
        """The file's hash or folder at ``path``; ``None`` if nothing is there.

        Raises:
            Links: it is a link and ``follow`` was not asked for, or something else altogether.
        """
        if self._path is None:
            return hash_of(os.path.realpath(path) if follow else path)
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if follow and stat.S_ISLNK(found.st_mode):
            return self.hash_of(os.path.realpath(path))
        if not stat.S_ISREG(found.st_mode):
            return hash_of(path)
        times = (found.st_mtime_ns, found.st_ctime_ns)
        signature = (found.st_ino, found.st_size, *times, found.st_mode)
        known = self._fresh.get(path) or self._known.get(path)
        if known is not None and known.signature == signature:
            self._fresh[path] = known
            return known.hash
        now = time_ns()
        hash = hash_of(path)
        if hash is not None and now - max(times) > _GRAIN:
            self._fresh[path] = _Known(signature, hash)
        return hash

    def save(self) -> None:
        """Save the index; an error here does not fail the run."""
        if self._path is not None and self._fresh != self._known:
            with suppress(OSError):
                put(self._path, msgspec.msgpack.encode(self._fresh), durable=False)


def _read(path: Path | None) -> dict[str, _Known]:
    if path is None:
        return {}
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.DecodeError):
        return {}


_HASH: Final = re.compile(r"[0-9a-f]{64}")

_SEPARATORS: Final = [one for one in (os.sep, os.altsep) if one and one != "/"]


def result_hash(artifacts: tuple[Artifact, ...], update: bytes) -> str:
    return hash_bytes(msgspec.json.encode((artifacts, update)))


def problem_of_entry(entry: CacheEntry, checkpoint: NodeCheckpoint) -> str | None:
    if {one.path: one.hash for one in entry.artifacts} != checkpoint.outputs:
        return "has different outputs than were recorded"
    for artifact in entry.artifacts:
        if why := problem_of_items(artifact):
            return why
    if result_hash(entry.artifacts, entry.update) != checkpoint.output_hash:
        return "has different content than was recorded"
    return None


def problem_of_items(artifact: Artifact) -> str | None:
    items = artifact.items
    folders: set[str] = set()
    names: set[str] = set()
    for place, item in enumerate(items):
        if place == 0:
            is_fit = item.path == "" and not item.link and (item.folder or len(items) == 1)
        else:
            is_fit = _is_inside(item, folders)
        if not is_fit or not _is_one_thing(item) or item.path in names:
            return f"has an item that does not belong to the output '{artifact.path}'"
        names.add(item.path)
        if item.folder:
            folders.add(item.path)
    if not items or hash_items(items) != artifact.hash:
        return f"has items that do not make up the output '{artifact.path}'"
    return None


def _is_inside(item: Item, folders: set[str]) -> bool:
    """True if the name is in an earlier folder, and a link stays inside."""
    folder, _, name = item.path.rpartition("/")
    return (
        folder in folders
        and item.path == (f"{folder}/{name}" if folder else name)
        and name not in ("", ".", "..")
        and "\0" not in name
        and not any(one in name for one in _SEPARATORS)
        and not os.path.splitdrive(name)[0]
        and not leads_out(item.link, item.path)
    )


def _is_one_thing(item: Item) -> bool:
    kinds = (bool(_HASH.fullmatch(item.hash)), item.folder, bool(item.link))
    return sum(kinds) == 1 and bool(item.hash) == kinds[0] and item.mode in range(0o1000)
