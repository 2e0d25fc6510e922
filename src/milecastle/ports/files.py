"""Files in object storage: how nodes store and read them, and which stores have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from io import BufferedReader, RawIOBase
from os import PathLike
from typing import TYPE_CHECKING, Protocol

from milecastle.errors import InvalidRequest
from milecastle.model.file import File, FilePlace

if TYPE_CHECKING:
    AnyPath = str | PathLike[str]

__all__ = ["FileReader", "FileStorage", "PlacedFiles", "StoredFiles", "require_files"]

_CHUNK = 1 << 20


class FileReader(BufferedReader):
    """A stored file, open for reading: a binary file as ``open(path, "rb")`` returns it.

    It reads what is asked for, in pieces of some megabytes, each verified before any of it is
    returned. A changed or missing piece is ``Corrupted``, with its place.
    """

    def __init__(self, raw: RawIOBase) -> None:
        super().__init__(raw, 1 << 16)

    def chunks(self, size: int = _CHUNK) -> Iterator[bytes]:
        """The rest of the file, ``size`` bytes at a time."""
        while data := self.read(size):
            yield data

    async def aread(self, size: int = -1) -> bytes:
        """``read`` without blocking the event loop."""
        from asyncio import to_thread

        return await to_thread(self.read, size)

    async def achunks(self, size: int = _CHUNK) -> AsyncIterator[bytes]:
        """``chunks`` without blocking the event loop."""
        while data := await self.aread(size):
            yield data


class StoredFiles(Protocol):
    """The files of one tenant in object storage."""

    def store(self, path: AnyPath, /) -> File:
        """Store a file of this machine. When it returns the content is durable."""
        ...

    async def astore(self, path: AnyPath, /) -> File:
        """``store`` without blocking the event loop."""
        ...

    def open(self, file: File, /) -> FileReader:
        """Open a stored file; ``Corrupted`` if it is missing or damaged."""
        ...


class PlacedFiles(StoredFiles, Protocol):
    """Files that another process can reach, too."""

    @property
    def place(self) -> FilePlace:
        """Where they are, as data."""
        ...


class FileStorage(Protocol):
    """The object storage of a store, for files.

    The store commits nothing that names a file which is not there, and no file is removed that an
    entry, a result or a waiting input names.
    """

    def files(self, tenant: str, *, sealed: bool) -> PlacedFiles:
        """The files of a tenant; ``sealed`` means that those it stores are encrypted."""
        ...

    def copy_file(self, tenant: str, digest: str, source: FileStorage) -> None:
        """Store a file that another store has."""
        ...

    def verify_file(self, tenant: str, digest: str, place: str) -> None:
        """Read all of a file; ``Corrupted`` names ``place`` and what is damaged."""
        ...


def require_files(storage: FileStorage | None) -> FileStorage:
    """The object storage of a store; ``InvalidRequest`` without one."""
    if storage is None:
        raise InvalidRequest(
            "files need an object storage: compile(store=..., objects='s3://bucket/prefix')"
        )
    return storage
