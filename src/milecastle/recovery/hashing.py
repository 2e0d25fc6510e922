"""Hashes: of what is in files and folders, and of what a task depends on.

The hash of a file is the SHA-256 of its bytes, with ``+x`` behind it if it can be executed; that
of a folder covers the names and hashes of everything in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from milecastle.recovery.records import Item

__all__ = ["Links", "hash_bytes", "hash_items", "hash_of", "look_into", "read_hash", "task_hash"]

_CHUNK: Final = 1 << 20
_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe is refused, not waited for
)
_EXECUTABLE: Final = "+x"


class Links(Exception):
    """Something that is neither a file nor a folder is in the way; ``path`` says where."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is {what}")
        self.path = path
        self.what = what


def hash_bytes(data: bytes) -> str:
    """The SHA-256 of these bytes, in hexadecimal."""
    return sha256(data).hexdigest()


def read_hash(path: str) -> tuple[str, int, int]:
    """The SHA-256, the size and the mode of a file; a link is not followed."""
    fd = os.open(path, _FLAGS)
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
        FileNotFoundError: nothing is there.
        Links: it is, or holds, something else; or a link that leads out of it.
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISDIR(mode):
        return (Item("", folder=True), *_inside(path, ""))
    if stat.S_ISLNK(mode):
        raise Links(path, "a symbolic link")
    return (_file(path, ""),)


def hash_items(items: tuple[Item, ...]) -> str:
    """The hash of what was looked into."""
    if len(items) == 1 and not items[0].folder:
        return items[0].hash + (_EXECUTABLE if items[0].executable else "")
    return "tree-" + hash_bytes(msgspec.json.encode(items))


def hash_of(path: str) -> str | None:
    """The hash of the file or folder at a path; ``None`` if nothing is there."""
    try:
        found, _, mode = read_hash(path)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, PermissionError, Links, OSError):
        return _hash_of_other(path)
    return found + _EXECUTABLE if mode & stat.S_IXUSR else found


def _hash_of_other(path: str) -> str | None:
    try:
        return hash_items(look_into(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _file(path: str, name: str) -> Item:
    found, size, mode = read_hash(path)
    return Item(name, hash=found, size=size, executable=bool(mode & stat.S_IXUSR))


def _inside(path: str, prefix: str) -> Iterable[Item]:
    with os.scandir(path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_symlink():
            yield Item(name, link=_inner_link(entry.path, name))
        elif entry.is_dir():
            yield Item(name, folder=True)
            yield from _inside(entry.path, f"{name}/")
        else:
            yield _file(entry.path, name)


def _inner_link(path: str, name: str) -> str:
    """What a link says, if it stays inside of the folder that is looked into."""
    target = Path(path).readlink()
    ups = os.path.normpath(target).replace("\\", "/").split("/").count("..")
    if target.is_absolute() or ups > name.count("/"):
        raise Links(path, "a symbolic link that leads out of its folder")
    return str(target)


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
    """The hash of everything that a task's result depends on, and of what it is to make.

    ``input`` is the digest of the run's input and ``seen`` that of the state, if they count.
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
