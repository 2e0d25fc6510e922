"""Files: content in chunks, so nobody holds all of it, and each range can be verified.

In a tenant's folder, ``files/DIGEST/GENERATION/`` has

- ``00000000``, ``00000001``, ...: the chunks, each compressed if that makes it smaller;
- ``index``: the file's size and the digest of each chunk; ``DIGEST`` is that of the index.

Rules:

- The index is put last and removed first: where it is, all chunks are.
- Everything read is verified: the index by the file's name, a chunk by the index, before any byte
  of it is returned.
- An entry names the digest, not the generation: all generations have the same content, so a reader
  takes any, and the sweep removes none while an entry names the digest.
- Before an entry naming a file is committed, ``ensure`` sees to it the generation the
  pointer names is there. If the sweep has condemned it, the file is copied to a new one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from io import RawIOBase
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec
import msgspec.msgpack

from milecastle.codec.envelope import COMPRESSED, compress, decompress, frame, unframe
from milecastle.errors import CodecError, Corrupted, InvalidRequest
from milecastle.model.file import File, FilePlace
from milecastle.ports.files import FileReader
from milecastle.stores.offloading.objects import SharedObjects, root_of
from milecastle.support.prepared import prepared

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from milecastle.codec.encryption import FileCipher
    from milecastle.ports.files import AnyPath

CHUNK: Final = 4 << 20
"""The size of a chunk before it is compressed: what a reader and a writer hold."""

_INDEX: Final = "index"
_DIGEST_BYTES: Final = 32
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_PART: Final = re.compile(r"[0-9a-f]+/files/([0-9a-f]{64})/([0-9a-f]{16})/(?:index|[0-9]{8,})")


@prepared
class FileIndex(msgspec.Struct, frozen=True, array_like=True):
    size: int
    chunk: int
    digests: bytes

    @property
    def count(self) -> int:
        return len(self.digests) // _DIGEST_BYTES

    def digest(self, number: int) -> bytes:
        return self.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]

    def range(self, number: int) -> tuple[int, int]:
        return number * self.chunk, min(self.size, (number + 1) * self.chunk)


def _digest_of(value: bytes) -> bytes:
    return blake2b(value, digest_size=_DIGEST_BYTES).digest()


def _name_of(index: bytes) -> str:
    return blake2b(index, digest_size=_DIGEST_BYTES, person=b"milecastle file").hexdigest()


def folder_of(tenant: str, digest: str) -> str:
    return f"{root_of(tenant)}files/{digest}/"


def unit_of(path: str) -> str | None:
    part = _PART.fullmatch(path)
    return f"{part[1]}.{part[2]}" if part else None


class StoredFile:
    """A file as stored, perhaps encrypted. ``place`` is for errors."""

    def __init__(self, objects: SharedObjects, tenant: str, digest: str, place: str) -> None:
        if not _DIGEST.fullmatch(digest):
            raise Corrupted("the digest of a file is damaged", place=place)
        self._objects = objects
        self._tenant = tenant
        self._digest = digest
        self._place = place
        self._base = ""
        self.index = self._read_index()

    def _read_index(self) -> FileIndex:
        data, where = self._read(_INDEX)
        try:
            index = msgspec.msgpack.decode(data, type=FileIndex)
        except msgspec.DecodeError:
            index = FileIndex(0, 0, b"")
        if _name_of(data) != self._digest or index.chunk < 1:
            raise Corrupted("the index of a file does not match its name", place=where)
        return index

    def chunk(self, number: int) -> bytes:
        start, end = self.index.range(number)
        data, where = self._read(f"{number:08}", f"bytes {start} to {end}, ")
        if _digest_of(data) != self.index.digest(number):
            raise Corrupted(
                "a chunk of a file does not have the content that was stored", place=where
            )
        return data

    def content(self, number: int, cipher: FileCipher | None) -> bytes:
        data = self.chunk(number)
        found = cipher.unseal(number, data) if cipher else data
        start, end = self.index.range(number)
        if len(found) != end - start:
            raise Corrupted(
                "a chunk of a file does not have its size: is the file encrypted, and was this "
                "File made without its key?",
                place=f"{self._place}, bytes {start} to {end}",
            )
        return found

    def _read(self, part: str, which: str = "") -> tuple[bytes, str]:
        folder = folder_of(self._tenant, self._digest)
        for base in self._bases(folder):
            path = f"{base}{part}"
            data = self._objects.folder.read(path)
            if data is None:
                continue
            self._base = base
            where = f"{self._place}, {which}object {path}"
            try:
                flags, body = unframe(data)
                return (decompress(body) if flags & COMPRESSED else body), where
            except CodecError as error:
                raise Corrupted(error.message, place=where) from None
        where = f"{self._place}, {which}object {folder}*/{part}"
        raise Corrupted("a file, or a chunk of it, is not in the object storage", place=where)

    def _bases(self, folder: str) -> Iterator[str]:
        if self._base:
            yield self._base
        pointed = None
        with suppress(Corrupted):  # writers need the pointer, readers do not
            pointed = self._objects.pointed(self._tenant, self._digest)
        if pointed is not None:
            yield f"{folder}{pointed}/"
        for one in self._objects.folder.list(folder):
            if one.path.endswith(f"/{_INDEX}"):
                yield one.path.removesuffix(_INDEX)


def put_file(
    objects: SharedObjects, tenant: str, index: FileIndex, chunk: Callable[[int], bytes], name: str
) -> str:
    """Store a file unless it is there, and return its digest.

    ``chunk`` is called for those that are missing; ``name`` is for errors.
    """
    encoded = msgspec.msgpack.encode(index)
    digest = _name_of(encoded)
    began = monotonic()
    generation = objects.generation(tenant, digest)
    base = f"{folder_of(tenant, digest)}{generation}/"
    folder = objects.folder
    if folder.find(f"{base}{_INDEX}") is None:
        there = {one.path for one in folder.list(base)}
        for number in range(index.count):
            path = f"{base}{number:08}"
            if path in there and folder.find(path) is not None:
                continue
            data = chunk(number)
            if _digest_of(data) != index.digest(number):
                raise InvalidRequest(f"{name} changed while it was being stored")
            folder.create(path, frame(*compress(data)))
        folder.create(f"{base}{_INDEX}", frame(*compress(encoded)))
    objects.remember(tenant, digest, f"{digest}.{generation}", began)
    return digest


def ensure(objects: SharedObjects, tenant: str, digest: str, place: str) -> None:
    """Let no sweep remove a file as long as writers rely on having seen it.

    Raises:
        Corrupted: the tenant has no such file, or it is damaged.
    """
    if not objects.known(tenant, digest):
        stored = StoredFile(objects, tenant, digest, place)
        put_file(objects, tenant, stored.index, stored.chunk, place)


class _Content(RawIOBase):
    def __init__(self, stored: StoredFile, cipher: FileCipher | None) -> None:
        self._stored = stored
        self._cipher = cipher
        self._at: int = 0
        self._number: int = -1
        self._held = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if self.closed:
            raise ValueError("seek of a closed file")
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._stored.index.size}
        if whence not in start or start[whence] + offset < 0:
            raise ValueError(f"cannot seek to {offset} from {whence}")
        self._at = start[whence] + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        index = self._stored.index
        if self._at >= index.size:
            return 0
        number, start = divmod(self._at, index.chunk)
        if number != self._number:
            self._number, self._held = -1, b""
            self._held = self._stored.content(number, self._cipher)
            self._number = number
        with memoryview(buffer).cast("B") as target:
            found = self._held[start : start + len(target)]
            target[: len(found)] = found
        self._at += len(found)
        return len(found)


class TenantFiles:
    """One tenant's files; with ``sealed`` those it stores are encrypted.

    ``begin`` is called before something is stored, here or by another process.
    """

    def __init__(
        self,
        objects: SharedObjects,
        tenant: str,
        *,
        sealed: bool,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._objects = objects
        self._tenant = tenant
        self._sealed = sealed
        self._begin = begin

    @property
    def place(self) -> FilePlace:
        """Where they are, as data for another process, which may store some.

        Raises:
            StoreError: they belong to another store.
        """
        self._begin()
        objects = self._objects
        return FilePlace(objects.url, objects.patience, self._tenant, self._sealed)

    def store(self, path: AnyPath) -> File:
        """Store a local file. When it returns the content is durable.

        Raises:
            InvalidRequest: it is not a regular file, or it changed meanwhile.
            OSError: it cannot be read.
            StoreError: the tenant's objects belong to another store.
        """
        path = Path(path)
        name = path.name
        secret = os.urandom(32) if self._sealed else None
        cipher = _cipher(secret)
        with open(path, "rb", opener=_open_at_once) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise InvalidRequest(f"'{name}' is not a regular file: it cannot be stored")

            def sealed(number: int, data: bytes) -> bytes:
                return cipher.seal(number, data) if cipher else data

            def chunk(number: int) -> bytes:
                source.seek(number * CHUNK)
                return sealed(number, source.read(CHUNK))

            index = _index_of(source, sealed)
            self._begin()
            digest = put_file(self._objects, self._tenant, index, chunk, f"the file '{name}'")
        return File(digest, name, index.size, secret)

    async def astore(self, path: AnyPath) -> File:
        from asyncio import to_thread

        return await to_thread(self.store, path)

    def open(self, file: File) -> FileReader:
        place = f"file {file.name!r}"
        stored = StoredFile(self._objects, self._tenant, file.digest, place)
        if stored.index.size != file.size:
            raise Corrupted(
                f"it has {stored.index.size} bytes, and this File says {file.size}", place=place
            )
        return FileReader(_Content(stored, _cipher(file.secret)))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _index_of(source: BinaryIO, sealed: Callable[[int, bytes], bytes]) -> FileIndex:
    """Read a file once for its digests. Its size is the bytes read: a disk's figure may differ."""
    size, digests = 0, bytearray()
    while data := source.read(CHUNK):
        digests += _digest_of(sealed(size // CHUNK, data))
        size += len(data)
        if size % CHUNK:
            break  # whatever is written behind it from now on is not part of it
    return FileIndex(size, CHUNK, bytes(digests))


def _cipher(secret: bytes | None) -> FileCipher | None:
    if secret is None:
        return None
    from milecastle.codec.encryption import FileCipher

    return FileCipher(secret)


@cache
def _objects_at(url: str, patience: float) -> SharedObjects:
    return SharedObjects(url, patience=patience)


def files_at(place: FilePlace) -> TenantFiles:
    if place.url.startswith("memory:"):
        raise InvalidRequest(
            "objects='memory:///' is the memory of the process that drives the run: a node with "
            "run_on= needs files in file:///folder or a bucket"
        )
    return TenantFiles(_objects_at(place.url, place.patience), place.tenant, sealed=place.sealed)
