"""Long-term memory: items in a tenant's namespaces, beside its threads.

A namespace is a tuple of labels. Its *path* has each label followed by a zero byte, which no label
has: a prefix in labels is a prefix in bytes, and no other namespace begins with those bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.keys import check_name
from milecastle.support.prepared import prepared

MOST_WRITES: Final = 256
MOST_BYTES: Final = 1 << 20
"""The most that one step, or one call of ``app.memory``, may write."""

MOST_LABELS: Final = 16
MOST_PATH: Final = 1536
"""Bytes of a path: with tenant and key it must fit into a row of an index, on every store."""

_LABEL_BYTES: Final = 256
_WORD: Final = 64
_LONGEST_TTL: Final = 3_153_600_000
"""A hundred years, in seconds."""

_words = re.compile(r"\w+").findall

ItemPlace = tuple[bytes, str]
"""An item's path and key."""


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """A remembered value. ``version`` counts the commits that put it, from 1.

    ``written_by`` is the thread and seq of the newest; ``None`` if ``app.memory`` put it.
    """

    namespace: tuple[str, ...]
    key: str
    value: Any
    version: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    written_by: tuple[str, int] | None = None


class MemoryHit(NamedTuple):
    """An item that a search found. Scores are comparable within one answer."""

    item: MemoryItem
    score: float


@prepared
class MemoryWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One item's put, or with ``value=None`` its deletion.

    ``value`` is opaque. ``words`` and ``vectors`` are its index: vectors are four-byte floats,
    one after the other, by ``model``, which names the dimensions too. ``ttl`` is in microseconds.
    ``if_version`` is the version that it replaces: 0 if there must be none.
    """

    path: bytes
    key: str
    value: bytes | None = None
    subject: str = ""
    words: tuple[str, ...] = ()
    vectors: bytes = b""
    model: str = ""
    ttl: int | None = None
    if_version: int | None = None

    @property
    def place(self) -> ItemPlace:
        """Its path and key."""
        return self.path, self.key

    @property
    def size(self) -> int:
        """Total bytes: value and index."""
        return len(self.value or b"") + len(self.vectors) + sum(map(len, self.words))

    def result(
        self, old: StoredItem | None, now: int, thread: str = "", seq: int = 0
    ) -> StoredItem | None:
        """A live item after this write; ``None`` if it deletes it."""
        if self.value is None:
            return None
        return StoredItem(
            path=self.path,
            key=self.key,
            subject=self.subject,
            value=self.value,
            words=self.words,
            vectors=self.vectors,
            model=self.model,
            version=(old.version if old else 0) + 1,
            created_at=old.created_at if old else now,
            updated_at=now,
            ttl=self.ttl,
            expires_at=None if self.ttl is None else now + self.ttl,
            thread=thread,
            seq=seq,
        )


class StoredItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as stores have it. Times are in microseconds since 1970; ``seq`` 0: by no thread."""

    path: bytes
    key: str
    subject: str
    value: bytes
    words: tuple[str, ...]
    vectors: bytes
    model: str
    version: int
    created_at: int
    updated_at: int
    ttl: int | None
    expires_at: int | None
    thread: str
    seq: int

    def is_live(self, now: int) -> bool:
        """True if its time is not over."""
        return self.expires_at is None or self.expires_at > now

    @property
    def place(self) -> ItemPlace:
        """Its path and key."""
        return self.path, self.key


def path_of(namespace: Sequence[str], *, least: int = 1) -> bytes:
    """A namespace's path. A prefix may have fewer labels: ``least=0``."""
    if isinstance(namespace, str) or not isinstance(namespace, tuple | list):
        raise InvalidRequest("a namespace is a tuple of labels, as ('users', 'u7')")
    if not least <= len(namespace) <= MOST_LABELS:
        raise InvalidRequest(f"a namespace has {least} to {MOST_LABELS} labels")
    for label in namespace:
        if type(label) is not str:  # which may not be hashed, or be equal to another
            check_name("label of a namespace", label)
    return _path_of(tuple(namespace))


@lru_cache(maxsize=1024)
def _path_of(namespace: tuple[str, ...]) -> bytes:
    for label in namespace:
        check_name("label of a namespace", label, _LABEL_BYTES)
    path = b"".join(label.encode() + b"\0" for label in namespace)
    if len(path) > MOST_PATH:
        raise InvalidRequest(
            f"a namespace may have at most {MOST_PATH:,} bytes, with one more for each label; this "
            f"one has {len(path):,}: shorten its labels, or move some of it into the key"
        )
    return path


@lru_cache(maxsize=1024)
def namespace_of(path: bytes) -> tuple[str, ...]:
    return tuple(label.decode() for label in path.split(b"\0")[:-1])


def above(path: bytes) -> bytes:
    """The upper bound for paths that begin with this one: UTF-8 has no such byte."""
    return path + b"\xff"


def words_of(text: str) -> tuple[str, ...]:
    """A text's words, each once and in order, without case; longer ones are cut."""
    import unicodedata

    each = _words(unicodedata.normalize("NFKC", text).casefold())
    return tuple(sorted({word[:_WORD] for word in each}))


def ttl_of(seconds: Any) -> int | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidRequest(f"ttl= is a number of seconds, not {type(seconds).__name__}")
    if not 0 < seconds <= _LONGEST_TTL:
        raise InvalidRequest(f"ttl= is more than 0 and at most {_LONGEST_TTL} seconds")
    return max(1, round(seconds * 1_000_000))


def check_size(writes: Sequence[MemoryWrite], whose: str) -> None:
    check_total(len(writes), sum(write.size for write in writes), whose)


def check_total(count: int, size: int, whose: str) -> None:
    if count > MOST_WRITES or size > MOST_BYTES:
        raise InvalidRequest(
            f"{whose} writes more than {MOST_WRITES} items or {MOST_BYTES:,} bytes to memory: "
            "store large values elsewhere, and remember where"
        )
