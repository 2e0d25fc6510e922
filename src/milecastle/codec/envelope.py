"""The frame around stored bytes: format version, flags, checksum, body.

Rules:

- The first six bytes (version, flags, CRC-32 of version, flags and body, big-endian) keep this form
  in every future version, so damage can be distinguished from a newer format.
- A body over ``COMPRESS_ABOVE`` bytes is compressed with zstd when that makes it smaller.
- Decompression is bounded by ``MAX_BYTES``, whatever the compressed frame claims.
- Encrypted payloads have a flag. They are not opened here.
- Payloads whose large values are in object storage have a flag. Only the store that wrote them
  restores them (``milecastle.stores.offloading``).
- The oldest entry of an archived thread has its payload in another one with a flag, which says
  where the entries before it are.
- A payload that names files is around another payload, and says which, whether or not that one is
  encrypted. It has a flag, and that of an encrypted payload if it is one.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Final, NoReturn, Protocol
from zlib import crc32

import msgspec

from milecastle.codec.bounds import MAX_BYTES
from milecastle.errors import CodecError, FormatTooNew, NoKeyring, NoObjects
from milecastle.model.keys import ThreadKey


class PayloadPlace(msgspec.Struct, frozen=True, gc=False):
    """Where a payload is in its thread's log.

    An entry has all but ``task``; ``rolled`` is the newest rollup or snapshot before it. A task
    result has the ``seq`` of the head and the ``task``; a result in a cache has ``seq`` 0.
    """

    seq: int = 0
    kind: int = 0
    base_seq: int = 0
    rolled: int = 0
    parent_id: str | None = None
    task: str | None = None


class Sealer(Protocol):
    """Converts bodies to payloads and back, each for its position in the log.

    The envelope itself is a sealer: it ignores the position.
    """

    def seal(self, body: bytes, place: PayloadPlace) -> bytes: ...

    def unseal(self, payload: bytes, place: PayloadPlace) -> bytes: ...

    def digest(self, body: bytes) -> str: ...


class Sealers(Protocol):
    def sealer(self, key: ThreadKey, *, new: bool) -> Sealer: ...


class _Unbound:
    def seal(self, body: bytes, place: PayloadPlace) -> NoReturn:
        self._refuse("encrypts")

    def unseal(self, payload: bytes, place: PayloadPlace) -> NoReturn:
        self._refuse("decrypts")

    def digest(self, body: bytes) -> NoReturn:
        self._refuse("computes digests")

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(f"an encrypting codec {what} for one thread: call for_thread(key) first")


UNBOUND = _Unbound()


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMAT_VERSION: Final = 1
COMPRESS_ABOVE: Final = 4096
COMPRESSED: Final = 1
ENCRYPTED: Final = 2
OBJECTS: Final = 4
FILES: Final = 8
ARCHIVE: Final = 16

_LEVEL: Final = 1
_HEADER: Final = struct.Struct(">BBI")
_WINDOW: Final[dict[int, int]] = {int(zstd.DecompressionParameter.window_log_max): 23}
_PLAIN_HEAD: Final = bytes((FORMAT_VERSION, 0))
_PLAIN_START: Final = crc32(_PLAIN_HEAD)
_COMPRESSED_HEAD: Final = bytes((FORMAT_VERSION, COMPRESSED))
_DIGEST: Final = 32


def seal(body: bytes, place: PayloadPlace | None = None) -> bytes:
    """Wrap ``body`` for storing. Its position matters only if it is encrypted."""
    if len(body) > COMPRESS_ABOVE:
        return frame(*compress(body))
    return _PLAIN_HEAD + crc32(body, _PLAIN_START).to_bytes(4) + body


def unseal(payload: bytes, place: PayloadPlace | None = None) -> bytes:
    """The sealed body.

    Raises:
        CodecError: the payload is damaged or over the limit.
        FormatTooNew: it was written by a newer version.
        NoKeyring: it is encrypted.
    """
    if payload[:2] == _PLAIN_HEAD:
        body = payload[6:]
        if crc32(body, _PLAIN_START).to_bytes(4) == payload[2:6]:
            return body
    flags, body = unframe(payload)
    if flags & ENCRYPTED:
        seq = place.seq if place else 0
        raise NoKeyring(
            f"the entry with seq {seq} is encrypted, but no keyring was given: "
            "compile(encryption=Keyring(...)) or open_store(url, encryption=Keyring(...))",
            seq=seq,
        )
    return decompress(body) if flags & COMPRESSED else body


def digest(body: bytes) -> str:
    from hashlib import blake2b

    return blake2b(body, digest_size=16).hexdigest()


def frame(flags: int, body: bytes) -> bytes:
    checksum = _checksum(FORMAT_VERSION, flags, body)
    return _HEADER.pack(FORMAT_VERSION, flags, checksum) + body


def unframe(payload: bytes) -> tuple[int, bytes]:
    """Flags and the rest after the header, undamaged and in a known format.

    If the payload names files, those of the payload inside.
    """
    if names_files(payload):
        payload = unframe_files(payload)[1]
    if len(payload) < _HEADER.size:
        raise CodecError("the stored bytes are damaged: they are too short")
    version, flags, body = _undamaged(payload)
    if version > FORMAT_VERSION:
        raise FormatTooNew(found=version, supported=FORMAT_VERSION, place="a stored value")
    if flags & (OBJECTS | ARCHIVE):
        raise NoObjects(
            "a stored value is in object storage, and the store was opened without it: pass the "
            "objects= that it was written with, or set MILECASTLE_OBJECTS for the command line"
        )
    if version != FORMAT_VERSION or flags & ~(COMPRESSED | ENCRYPTED):
        raise CodecError(f"no format has version {version} with flags {flags}")
    return flags, body


def frame_objects(body: bytes) -> bytes:
    flags, body = compress(body)
    return frame(flags | OBJECTS, body)


def unframe_objects(payload: bytes) -> bytes:
    _, flags, body = _undamaged(payload)
    return decompress(body) if flags & COMPRESSED else body


def names_objects(payload: bytes) -> bool:
    return _has_flag(payload, OBJECTS)


def frame_files(digests: Sequence[str], payload: bytes) -> bytes:
    names = b"".join(map(bytes.fromhex, digests))
    flags = FILES | payload[1] & ENCRYPTED
    return frame(flags, len(digests).to_bytes(4) + names + payload)


def unframe_files(payload: bytes) -> tuple[list[str], bytes]:
    version, flags, checksum = _HEADER.unpack_from(payload)
    body = payload[_HEADER.size :]
    end = 4 + _DIGEST * int.from_bytes(body[:4])
    if _checksum(version, flags, body) != checksum or len(body) < end:
        raise CodecError("the stored bytes are damaged: they do not name files")
    return [body[at : at + _DIGEST].hex() for at in range(4, end, _DIGEST)], body[end:]


def names_files(payload: bytes) -> bool:
    return _has_flag(payload, FILES)


def frame_archive(segments: bytes, payload: bytes) -> bytes:
    flags = ARCHIVE | (payload[1] & ENCRYPTED if len(payload) > 1 else 0)
    return frame(flags, len(segments).to_bytes(4) + segments + payload)


def unframe_archive(payload: bytes) -> tuple[bytes, bytes]:
    """Encoded segments, and the payload inside."""
    _, _, body = _undamaged(payload)
    end = 4 + int.from_bytes(body[:4])
    return body[4:end], body[end:]


def names_archive(payload: bytes) -> bool:
    return _has_flag(payload, ARCHIVE)


def plain_size(payload: bytes) -> int:
    if len(payload) <= _HEADER.size or payload[:2] != _COMPRESSED_HEAD:
        return len(payload)
    try:
        return zstd.get_frame_info(memoryview(payload)[_HEADER.size :]).decompressed_size or 0
    except zstd.ZstdError:
        return 0


def compress(body: bytes, level: int = _LEVEL, above: int = COMPRESS_ABOVE) -> tuple[int, bytes]:
    if len(body) > above:
        smaller = zstd.compress(body, level)
        if len(smaller) < len(body):
            return COMPRESSED, smaller
    return 0, body


def decompress(body: bytes) -> bytes:
    try:
        size = zstd.get_frame_info(body).decompressed_size
        if not size or size > MAX_BYTES:
            raise CodecError(f"the stored bytes are over the limit of {MAX_BYTES}")
        decompressor = zstd.ZstdDecompressor(options=_WINDOW)
        plain = decompressor.decompress(body, max_length=size + 1)
    except zstd.ZstdError:
        raise CodecError("the stored bytes are damaged: they cannot be decompressed") from None
    if not decompressor.eof or decompressor.unused_data or len(plain) != size:
        raise CodecError("the stored bytes are damaged: they cannot be decompressed")
    return plain


def _has_flag(payload: bytes, flag: int) -> bool:
    whole = len(payload) >= _HEADER.size
    return whole and payload[0] == FORMAT_VERSION and bool(payload[1] & flag)


def _undamaged(payload: bytes) -> tuple[int, int, bytes]:
    version, flags, checksum = _HEADER.unpack_from(payload)
    body = payload[_HEADER.size :]
    if _checksum(version, flags, body) != checksum:
        raise CodecError("the stored bytes are damaged: their checksum does not match")
    return version, flags, body


def _checksum(version: int, flags: int, body: bytes) -> int:
    return crc32(body, crc32(bytes((version, flags))))
