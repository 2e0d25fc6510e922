"""The frame around stored bytes: format version, flags, checksum, body.

Rules:

- The first six bytes (version, flags, CRC-32 of version, flags and body, big-endian) keep this
  form in every version to come, so that damage is told apart from a newer format.
- A body over ``COMPRESS_ABOVE`` bytes is compressed with zstd when that makes it smaller.
- Decompression is bounded by ``MAX_BYTES``, whatever the compressed frame claims.
- What is encrypted says so in its flags. It is never opened here, only told apart.
"""

from __future__ import annotations

import struct
import sys
from typing import Final
from zlib import crc32

from milecastle.codec.limits import MAX_BYTES
from milecastle.errors import CodecError, FormatTooNew, NoKeyring

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = [
    "COMPRESSED",
    "COMPRESS_ABOVE",
    "ENCRYPTED",
    "FORMAT_VERSION",
    "compress",
    "decompress",
    "digest",
    "frame",
    "seal",
    "unframe",
    "unseal",
]

FORMAT_VERSION: Final = 1
COMPRESS_ABOVE: Final = 4096
COMPRESSED: Final = 1
ENCRYPTED: Final = 2

_LEVEL: Final = 1
_HEADER: Final = struct.Struct(">BBI")
_WINDOW: Final[dict[int, int]] = {int(zstd.DecompressionParameter.window_log_max): 23}
_PLAIN_HEAD: Final = bytes((FORMAT_VERSION, 0))
_PLAIN_START: Final = crc32(_PLAIN_HEAD)


def seal(body: bytes, seq: int = 0, kind: int = 0, task: str | None = None) -> bytes:
    """Wrap ``body`` for storing. Where it stands is no matter as long as it is not encrypted."""
    if len(body) > COMPRESS_ABOVE:
        return frame(*compress(body))
    return _PLAIN_HEAD + crc32(body, _PLAIN_START).to_bytes(4) + body


def unseal(payload: bytes, seq: int = 0, kind: int = 0, task: str | None = None) -> bytes:
    """The body that was sealed.

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
        raise NoKeyring(
            f"the entry with seq {seq} is encrypted and no keyring was given: "
            "compile(encryption=Keyring(...)) or open_store(url, encryption=Keyring(...))",
            seq=seq,
        )
    return decompress(body) if flags & COMPRESSED else body


def digest(body: bytes) -> str:
    """Tells two bodies apart; not a secret."""
    return f"{len(body)}-{crc32(body):08x}"


def frame(flags: int, body: bytes) -> bytes:
    """The header with these flags, then ``body`` as it is."""
    return _HEADER.pack(FORMAT_VERSION, flags, _checksum(FORMAT_VERSION, flags, body)) + body


def unframe(payload: bytes) -> tuple[int, bytes]:
    """The flags and what follows the header, undamaged and of a format that is known."""
    if len(payload) < _HEADER.size:
        raise CodecError("the stored bytes are damaged: they are too short")
    version, flags, checksum = _HEADER.unpack_from(payload)
    body = payload[_HEADER.size :]
    if _checksum(version, flags, body) != checksum:
        raise CodecError("the stored bytes are damaged: their checksum does not match")
    if version > FORMAT_VERSION:
        raise FormatTooNew(found=version, supported=FORMAT_VERSION, place="a stored value")
    if version < FORMAT_VERSION or flags & ~(COMPRESSED | ENCRYPTED):
        raise CodecError(f"no format has version {version} with flags {flags}")
    return flags, body


def compress(body: bytes) -> tuple[int, bytes]:
    """The flags and the body to store: compressed if it is long and that makes it shorter."""
    if len(body) > COMPRESS_ABOVE:
        smaller = zstd.compress(body, _LEVEL)
        if len(smaller) < len(body):
            return COMPRESSED, smaller
    return 0, body


def decompress(body: bytes) -> bytes:
    """What was compressed, if it is within the limit."""
    try:
        size = zstd.get_frame_info(body).decompressed_size
        if not size or size > MAX_BYTES:
            raise CodecError(f"the stored bytes are over the limit of {MAX_BYTES}")
        decompressor = zstd.ZstdDecompressor(options=_WINDOW)
        plain = decompressor.decompress(body, max_length=size + 1)
    except zstd.ZstdError:
        raise CodecError("the stored bytes are damaged: they do not decompress") from None
    if not decompressor.eof or decompressor.unused_data or len(plain) != size:
        raise CodecError("the stored bytes are damaged: they do not decompress")
    return plain


def _checksum(version: int, flags: int, body: bytes) -> int:
    return crc32(body, crc32(bytes((version, flags))))
