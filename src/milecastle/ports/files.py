"""Files in object storage: storing, reading, and the stores that have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from io import BufferedReader, RawIOBase
from os import PathLike
from typing import TYPE_CHECKING, Protocol

from milecastle.errors import InvalidRequest
from milecastle.model.file import File, FilePlace

if TYPE_CHECKING:
    AnyPath = str | PathLike[str]

_CHUNK = 1 << 20


class FileReader(BufferedReader):
    """A stored file, open for reading: a binary file as ``open(path, "rb")`` returns it.

    It reads the requested range in pieces, each a few megabytes and verified before it is
    returned. A changed or missing piece is ``Corrupted``, with its place.
    """

    def __init__(self, raw: RawIOBase) -> None:
        super().__init__(raw, 1 << 16)

    def chunks(self, size: int = _CHUNK) -> Iterator[bytes]:
        """The file's rest in pieces of ``size`` bytes."""
        while data := self.read(size):
            yield data

    async def aread(self, size: int = -1) -> bytes:
        """Async version of ``read``."""
        from asyncio import to_thread

        return await to_thread(self.read, size)

    async def achunks(self, size: int = _CHUNK) -> AsyncIterator[bytes]:
        """Async version of ``chunks``."""
        while data := await self.aread(size):
            yield data


class StoredFiles(Protocol):
    """One tenant's files in object storage."""

    def store(self, path: AnyPath, /) -> File:
        """Store a local file. On return the content is durable."""
        ...

    async def astore(self, path: AnyPath, /) -> File:
        """Async version of ``store``."""
        ...

    def open(self, file: File, /) -> FileReader:
        """Open a stored file; ``Corrupted`` if it is missing or damaged."""
        ...


class PlacedFiles(StoredFiles, Protocol):
    """Files other processes can reach too."""

    @property
    def place(self) -> FilePlace: ...


class FileStorage(Protocol):
    """A store's object storage, for files.

    The store commits nothing naming a file which is not there, and no file is removed that an
    entry, a result or a waiting input names.
    """

    def files(self, tenant: str, *, sealed: bool) -> PlacedFiles:
        """A tenant's files; ``sealed`` means those it stores are encrypted."""
        ...

    def copy_file(self, tenant: str, digest: str, source: FileStorage) -> None:
        """Store a file another store has."""
        ...

    def verify_file(self, tenant: str, digest: str, place: str) -> None:
        """Read a whole file; ``Corrupted`` names ``place`` and what is damaged."""
        ...


def require_files(storage: FileStorage | None) -> FileStorage:
    if storage is None:
        raise InvalidRequest(
            "files need an object storage: compile(store=..., objects='s3://bucket/prefix')"
        )
    return storage
