"""The envelope of a portable file: its start, and the checksum and signature at its end.

A file is a pickle and, after its last opcode, where every reader of pickles stops reading, a
checksum and perhaps a signature (HMAC-SHA-256 of the pickle). All of it is checked before the first
opcode is read.
"""

from __future__ import annotations

import struct
from typing import Final

from milecastle.errors import Corrupted, FormatTooNew, UntrustedFile
from milecastle.ports.formats import unreleased

FORMAT: Final = "1.0"
"""The version in files. Another number before the dot is another format; older ones are read."""

_OPENING: Final = b"\x80\x04}(X\x07\x00\x00\x00versionX"
_CHECKSUM: Final = b"#milecastle:sha256:"
_SIGNATURE: Final = b"#milecastle:hmac-sha256:"
_UNRELEASED: Final = (b"#milecastle-sha256:", b"#milecastle-hmac-sha256:")
"""The same two in files from before the first release."""

_DIGEST: Final = 32


def close_file(content: bytes, key: bytes | None) -> bytes:
    """File for a pickle starting with its version; signed if there is a key."""
    if not content.startswith(_OPENING):
        raise ValueError("a portable file begins with its version")
    end = _CHECKSUM + _checksum(content)
    return content + end + (_SIGNATURE + _sign(content, key) if key is not None else b"")


def open_file(data: bytes, key: bytes | None, place: str) -> bytes:
    """The pickle in a file, after everything around it was verified.

    Raises:
        UntrustedFile: it is something else, or there is a key and the file is not signed with it.
        FormatTooNew: a newer version wrote it.
        Corrupted: it is truncated, or a byte of it changed.
        StoreError: it was written before the first release.
    """
    _check_opening(data, place)
    content, signature = _split(data, _SIGNATURE)
    content, checksum = _split(content, _CHECKSUM)
    if key is not None:
        _check_signature(content, key, signature, place)
    if checksum is None:
        raise Corrupted("the file is cut short, or its end is damaged,", place=place)
    if checksum != _checksum(content):
        raise Corrupted("the file is damaged: its checksum does not match", place=place)
    return content


def _check_opening(data: bytes, place: str) -> None:
    if len(data) <= len(_OPENING) and _OPENING.startswith(data):
        raise Corrupted("the file is cut short", place=place)
    if not data.startswith(_OPENING):
        raise UntrustedFile(f"{place} is not a portable file of milecastle: nothing in it was read")
    checksum, signature = _UNRELEASED
    if _split(_split(data, signature)[0], checksum)[1] is not None:
        raise unreleased(place)
    major = _major(data[len(_OPENING) :])
    supported = int(FORMAT.partition(".")[0])
    if major is not None and major > supported:
        raise FormatTooNew(found=major, supported=supported, place=place)


def _major(text: bytes) -> int | None:
    if len(text) < 4:
        return None
    (size,) = struct.unpack("<I", text[:4])
    number = text[4 : 4 + min(size, 16)].partition(b".")[0]
    return int(number) if number.isdigit() else None


def _split(data: bytes, mark: bytes) -> tuple[bytes, bytes | None]:
    start = len(data) - len(mark) - _DIGEST
    if start < 0 or data[start:-_DIGEST] != mark:
        return data, None
    return data[:start], data[-_DIGEST:]


def _check_signature(content: bytes, key: bytes, signature: bytes | None, place: str) -> None:
    import hmac

    if signature is None:
        raise UntrustedFile(
            f"{place} is not signed, and this app opens only files signed with its key"
        )
    if not hmac.compare_digest(signature, _sign(content, key)):
        raise UntrustedFile(
            f"the signature of {place} does not match: it was signed with another key, or the "
            "file was changed"
        )


def _checksum(content: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(content).digest()


def _sign(content: bytes, key: bytes) -> bytes:
    import hmac

    return hmac.digest(key, content, "sha256")
