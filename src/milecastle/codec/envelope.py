"""The frame around stored bytes: format version, flags, checksum, body.

Rules:

- The first six bytes (version, flags, CRC-32 of version, flags and body, big-endian) keep this
  form in every version to come, so that damage is told apart from a newer format.
- A body over ``COMPRESS_ABOVE`` bytes is compressed with zstd when that makes it smaller.
- Decompression is bounded by ``MAX_BYTES``, whatever the compressed frame claims.
"""

from __future__ import annotations

import struct
import sys
from typing import Final
from zlib import crc32

from milecastle.codec.limits import MAX_BYTES
from milecastle.errors import CodecError, FormatTooNew

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["COMPRESS_ABOVE", "FORMAT_VERSION", "seal", "unseal"]

FORMAT_VERSION: Final = 1
COMPRESS_ABOVE: Final = 4096

_COMPRESSED: Final = 1
_LEVEL: Final = 1
_HEADER: Final = struct.Struct(">BBI")
_WINDOW: Final[dict[int, int]] = {int(zstd.DecompressionParameter.window_log_max): 23}


def _checksum(version: int, flags: int, body: bytes) -> int:
    return crc32(body, crc32(bytes((version, flags))))


_PLAIN_HEAD: Final = bytes((FORMAT_VERSION, 0))
_PLAIN_START: Final = crc32(_PLAIN_HEAD)


def seal(body: bytes) -> bytes:
    """Wrap ``body`` for storing."""
    if len(body) > COMPRESS_ABOVE:
        smaller = zstd.compress(body, _LEVEL)
        if len(smaller) < len(body):
            checksum = _checksum(FORMAT_VERSION, _COMPRESSED, smaller)
            return _HEADER.pack(FORMAT_VERSION, _COMPRESSED, checksum) + smaller
    return _PLAIN_HEAD + crc32(body, _PLAIN_START).to_bytes(4) + body


def unseal(payload: bytes) -> bytes:
    """The body that was sealed.

    Raises:
        CodecError: the payload is damaged or over the limit.
        FormatTooNew: it was written by a newer version.
    """
    if len(payload) < _HEADER.size:
        raise CodecError("the stored bytes are damaged: they are too short")
    version, flags, checksum = _HEADER.unpack_from(payload)
    body = payload[_HEADER.size :]
    if _checksum(version, flags, body) != checksum:
        raise CodecError("the stored bytes are damaged: their checksum does not match")
    if version > FORMAT_VERSION:
        raise FormatTooNew(found=version, supported=FORMAT_VERSION, place="a stored value")
    if version < FORMAT_VERSION or flags & ~_COMPRESSED:
        raise CodecError(f"no format has version {version} with flags {flags}")
    return _decompress(body) if flags & _COMPRESSED else body


def _decompress(body: bytes) -> bytes:
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
