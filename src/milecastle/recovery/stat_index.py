"""What is known of files that have not been touched since they were hashed.

A file's hash is taken from here if its inode, size and both times are the same, as version
control and build tools do. A file that was touched less than two seconds before it was hashed is
not noted: within the grain of a disk's clock it could change again unseen.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from time import time_ns
from typing import Final

import msgspec

from milecastle.recovery.durable import put
from milecastle.recovery.hashing import Links, hash_of

__all__ = ["StatIndex"]

_GRAIN: Final = 2_000_000_000

Signature = tuple[int, int, int, int, int]


class _Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    signature: Signature
    hash: str


class StatIndex:
    """Hashes of files by path. Losing it costs time and nothing else."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = _read(path)
        self._fresh: dict[str, _Known] = {}

    def hash_of(self, path: str, *, follow: bool = False) -> str | None:
        """The hash of the file or folder at ``path``; ``None`` if nothing is there.

        Raises:
            Links: it is a link and ``follow`` was not asked for, or something else altogether.
        """
        if self._path is None:
            return _hash_of_any(path) if follow else hash_of(path)
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if follow and stat.S_ISLNK(found.st_mode):
            return self.hash_of(os.path.realpath(path))
        if not stat.S_ISREG(found.st_mode):
            return hash_of(path)
        signature = _signature(found)
        known = self._fresh.get(path) or self._known.get(path)
        if known is not None and known.signature == signature:
            self._fresh[path] = known
            return known.hash
        now = time_ns()
        hash = hash_of(path)
        if hash is not None and now - max(found.st_mtime_ns, found.st_ctime_ns) > _GRAIN:
            self._fresh[path] = _Known(signature, hash)
        return hash

    def save(self) -> None:
        """Write down what was looked at; an error in doing so is no error of the run."""
        if self._path is None or self._fresh == self._known:
            return
        try:
            put(self._path, msgspec.msgpack.encode(self._fresh), durable=False)
        except OSError:
            return


def _hash_of_any(path: str) -> str | None:
    try:
        return hash_of(path)
    except Links:
        return hash_of(os.path.realpath(path))


def _signature(found: os.stat_result) -> Signature:
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode)


def _read(path: Path | None) -> dict[str, _Known]:
    if path is None:
        return {}
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.DecodeError):
        return {}
