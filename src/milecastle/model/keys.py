"""How a thread is addressed. A call without a tenant cannot be written."""

from __future__ import annotations

import zlib

import msgspec

from milecastle.errors import InvalidRequest

__all__ = ["MAX_ID_BYTES", "SHARDS", "ThreadKey"]

SHARDS = 1024
MAX_ID_BYTES = 512


class ThreadKey(msgspec.Struct, frozen=True, order=True):
    """A thread within a tenant. Both are required by every read and write."""

    tenant: str
    thread: str

    def __post_init__(self) -> None:
        _check("tenant", self.tenant)
        _check("thread", self.thread)

    @property
    def shard(self) -> int:
        """The shard that owns the thread; the same on every machine and version."""
        return zlib.crc32(f"{self.tenant}\0{self.thread}".encode()) % SHARDS

    def __str__(self) -> str:
        return f"{self.tenant}/{self.thread}"


def _check(what: str, value: object) -> None:
    """Refuse what some store could not keep, so that every store gives the same verdict."""
    if type(value) is not str:
        raise InvalidRequest(f"a {what} id must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidRequest(f"a {what} id must not be empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"a {what} id must not contain lone surrogates") from None
    if "\0" in value:
        raise InvalidRequest(f"a {what} id must not contain NUL")
    if size > MAX_ID_BYTES:
        raise InvalidRequest(f"a {what} id may have {MAX_ID_BYTES} bytes, this one has {size}")
