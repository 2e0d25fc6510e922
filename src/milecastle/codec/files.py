"""Which files a body names, found before it is encrypted.

The sweep of object storage must know which files are in use, and has no keys. So a payload that
names files says so outside the encrypted part: the digests of their (encrypted) contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from msgspec import DecodeError
from msgspec.msgpack import Decoder

from milecastle.codec import codes
from milecastle.codec.envelope import PayloadPlace, frame_files
from milecastle.model.file import File

FILE_TYPE: Final = "milecastle.File"
"""The name of the type in stored bytes."""

_MARK: Final = FILE_TYPE.encode()
_DIGEST: Final = re.compile("[0-9a-f]{64}")


def parts_of_file(file: File) -> list[object]:
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
        look_into_bytes(parts)

    def look_into_bytes(value: Any) -> None:
        """A flow's records are encoded values, each by itself."""
        if isinstance(value, bytes) and _MARK in value:
            with suppress(DecodeError):  # other bytes that have this text
                look_into_bytes(decode(value))
        elif isinstance(value, list | tuple):
            for item in cast("list[Any]", value):
                look_into_bytes(item)
        elif isinstance(value, dict):
            look_into_bytes([*cast("Mapping[Any, Any]", value).items()])

    decode = Decoder(ext_hook=look_into).decode
    look_into_bytes(decode(body))
    return list(found)
