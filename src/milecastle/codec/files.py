"""Which files a body names, found before it is encrypted.

The sweep of object storage must know which files are in use, and has no keys. So a payload that
names files says so outside the encrypted part: the digests of their (encrypted) contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from msgspec.msgpack import Decoder

from milecastle.codec import codes
from milecastle.codec.envelope import PayloadPlace, frame_files
from milecastle.model.file import File

FILE_TYPE: Final = "milecastle.File"
"""The name of the type in stored bytes."""

_MARK: Final = FILE_TYPE.encode()
_DIGEST: Final = re.compile("[0-9a-f]{64}")


def parts_of_file(file: File) -> list[object]:
    """A file's stored form; ``ValueError`` unless object storage returned it."""
    if not _DIGEST.fullmatch(file.digest):
        raise ValueError("not a digest")
    return [file.digest, file.name, file.size, file.secret]


def naming_files(
    seal: Callable[[bytes, PayloadPlace], bytes],
) -> Callable[[bytes, PayloadPlace], bytes]:
    def seal_and_name(body: bytes, place: PayloadPlace) -> bytes:
        payload = seal(body, place)
        found = files_in(body)
        return frame_files(found, payload) if found else payload

    return seal_and_name


def files_in(body: bytes) -> list[str]:
    if _MARK not in body:
        return []
    found: dict[str, None] = {}

    def look_into(code: int, data: memoryview) -> None:
        if code not in codes.NESTING or _MARK not in bytes(data):
            return
        parts: list[Any] = decode(data)
        if code == codes.ADAPTED and parts[0] == FILE_TYPE:
            found[parts[1][0]] = None

    decode = Decoder(ext_hook=look_into).decode
    decode(body)
    return list(found)
