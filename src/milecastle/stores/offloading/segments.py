"""Segments: runs of a thread's entries, each one object in object storage.

A segment is a *directory*, then groups of entries in the order of their seqs. A group is two
blocks, compressed as a whole: the entries without payloads, and their payloads. So a history
reads no payload, and a state reads the blocks of its chain.

Rules:

- The first entry of a segment is a snapshot: no chain leaves its segment.
- The name of a segment is the digest of its directory, which has the digest of every block. What
  is read is compared with them, so a changed byte is found, and its block is named.
- The directory has the thread, and the objects and files that the entries name: the sweep reads
  it instead of the entries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec
import msgspec.msgpack
import msgspec.structs

from milecastle.codec.bounds import MAX_BYTES
from milecastle.codec.envelope import (
    COMPRESSED,
    compress,
    decompress,
    frame,
    plain_size,
    unframe,
)
from milecastle.errors import CodecError, Corrupted
from milecastle.model.checkpoint import ROLLUP, SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Chain
from milecastle.stores.offloading.objects import SharedObjects, object_path
from milecastle.stores.offloading.payloads import PACKED, named_files, opened, references
from milecastle.support.prepared import prepared

_GROUP_BYTES: Final = 256 << 10
_GROUP_ENTRIES: Final = 512
_LEVEL: Final = 6
_WHOLE: Final = 64 << 10
"""Segments up to this size are read at once."""


@prepared
class SegmentSpan(msgspec.Struct, frozen=True, array_like=True):
    """Where a thread names one of its segments: the object's name and size, and its seqs.

    ``directory`` is the size of the directory.
    """

    name: str
    size: int
    directory: int
    first: int
    last: int


@prepared
class _Group(msgspec.Struct, frozen=True, array_like=True):
    first: int
    last: int
    sizes: tuple[int, int]
    digests: tuple[bytes, bytes]


@prepared
class _Directory(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    thread: str
    named: tuple[str, ...]
    groups: tuple[_Group, ...]


T = TypeVar("T")

_Payloads = tuple[tuple[bool, bytes], ...]
_decode_entries: Final = msgspec.msgpack.Decoder(tuple[Entry, ...]).decode
_decode_payloads: Final = msgspec.msgpack.Decoder(tuple[tuple[bool, bytes], ...]).decode
_decode_directory: Final = msgspec.msgpack.Decoder(_Directory).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def write_segment(
    objects: SharedObjects, key: ThreadKey, entries: Sequence[Entry]
) -> tuple[SegmentSpan, bytes]:
    """Store entries as one segment; return where it is, and its bytes.

    Their payloads are as the store inside has them.
    """
    groups: list[_Group] = []
    blocks: list[bytes] = []
    for group in _grouped(entries):
        lines = _framed([msgspec.structs.replace(entry, payload=b"") for entry in group])
        payloads = _framed([_unpacked(entry.payload) for entry in group])
        sizes, digests = (len(lines), len(payloads)), (_digest(lines), _digest(payloads))
        groups.append(_Group(group[0].seq, group[-1].seq, sizes, digests))
        blocks += (lines, payloads)
    named = dict.fromkeys(name for entry in entries for name in _names_in(entry.payload))
    directory = _framed(_Directory(key.tenant, key.thread, tuple(named), tuple(groups)))
    name = f"{_name_digest(directory)}.{os.urandom(8).hex()}"
    whole = b"".join((directory, *blocks))
    objects.folder.create(object_path(key.tenant, name), whole)
    return SegmentSpan(name, len(whole), len(directory), entries[0].seq, entries[-1].seq), whole


class StoredSegment:
    """A stored segment, read as far as needed and verified.

    Raises: Corrupted: it is missing, or a byte of what was read has changed.
    """

    def __init__(self, objects: SharedObjects, key: ThreadKey, span: SegmentSpan) -> None:
        self._objects = objects
        self._path = object_path(key.tenant, span.name)
        self._place = f"thread '{key.thread}', seq {span.first} to {span.last}"
        self._blocks: dict[int, Any] = {}
        self._whole: bytes | None = None
        if span.size <= _WHOLE:
            self._whole = self._present(objects.folder.read(self._path))
        directory = self._read(0, span.directory)
        if _name_digest(directory) != span.name.partition(".")[0]:
            raise self._corrupted("its directory does not match its name", 0)
        found: _Directory = self._decoded(_decode_directory, directory, 0)
        if (found.tenant, found.thread) != (key.tenant, key.thread):
            raise self._corrupted("it is the segment of another thread", 0)
        self.named = found.named
        self._groups = found.groups
        sizes = [size for group in found.groups for size in group.sizes]
        self._starts = list(accumulate(sizes, initial=span.directory))

    def newest_first(self, below: int) -> Iterator[Entry]:
        """Entries below a seq, without payloads."""
        for at in reversed(range(len(self._groups))):
            if self._groups[at].first < below:
                yield from (one for one in reversed(self._lines(at)) if one.seq < below)

    def entries(self, first: int = 0, last: int = sys.maxsize) -> Iterator[Entry]:
        """Entries from ``first`` to ``last`` with payloads, oldest first."""
        for at, group in enumerate(self._groups):
            if group.first <= last and first <= group.last:
                for line, payload in zip(self._lines(at), self._payloads(at), strict=True):
                    if first <= line.seq <= last:
                        yield msgspec.structs.replace(line, payload=_packed(*payload))

    def chain(self, seq: int) -> Chain:
        """The chain of one of its checkpoints."""
        found = [self._line(seq)]
        while (oldest := found[-1]).kind != SNAPSHOT:
            before = oldest.seq - 1
            below = self._line(before).roll_seq if oldest.kind == ROLLUP else before
            found.append(self._line(below))
        return Chain(tuple(self._with_payload(line) for line in reversed(found)))

    def _line(self, seq: int) -> Entry:
        at = self._group_of(seq)
        return self._lines(at)[seq - self._groups[at].first]

    def _with_payload(self, line: Entry) -> Entry:
        at = self._group_of(line.seq)
        payload = self._payloads(at)[line.seq - self._groups[at].first]
        return msgspec.structs.replace(line, payload=_packed(*payload))

    def _group_of(self, seq: int) -> int:
        for at, group in enumerate(self._groups):
            if group.first <= seq <= group.last:
                return at
        raise self._corrupted(f"the chain of a checkpoint leads to seq {seq}, outside of it", 0)

    def _lines(self, at: int) -> tuple[Entry, ...]:
        lines: tuple[Entry, ...] = self._block(2 * at, _decode_entries)
        return lines

    def _payloads(self, at: int) -> _Payloads:
        payloads: _Payloads = self._block(2 * at + 1, _decode_payloads)
        return payloads

    def _block(self, number: int, decode: Callable[[bytes], Any]) -> Any:
        if number not in self._blocks:
            group, which = self._groups[number // 2], number % 2
            start = self._starts[number]
            block = self._read(start, start + group.sizes[which])
            if _digest(block) != group.digests[which]:
                raise self._corrupted("its bytes were changed", start)
            self._blocks[number] = self._decoded(decode, block, start)
        return self._blocks[number]

    def _read(self, start: int, end: int) -> bytes:
        if self._whole is not None:
            return self._whole[start:end]
        return self._present(self._objects.folder.read_range(self._path, start, end))

    def _present(self, found: bytes | None) -> bytes:
        if found is None:
            raise self._corrupted("it is missing", 0)
        return found

    def _decoded(self, decode: Callable[[bytes], T], block: bytes, start: int) -> T:
        try:
            flags, body = unframe(block)
            return decode(decompress(body) if flags & COMPRESSED else body)
        except (CodecError, msgspec.DecodeError):
            raise self._corrupted("its bytes were changed", start) from None

    def _corrupted(self, problem: str, start: int) -> Corrupted:
        place = f"{self._place}, object {self._path}, byte {start}"
        return Corrupted(f"a segment of the archive cannot be read: {problem}", place=place)


def _grouped(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += plain_size(entry.payload)
        if len(group) == _GROUP_ENTRIES or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _names_in(payload: bytes) -> Iterator[str]:
    yield from (reference.name for reference in references(payload))
    yield from named_files(payload)


def _framed(value: object) -> bytes:
    body = _encode(value)
    return frame(*compress(body, _LEVEL, 0)) if len(body) <= MAX_BYTES else frame(0, body)


def _unpacked(payload: bytes) -> tuple[bool, bytes]:
    """A payload, decompressed if it was compressed alone: blocks are compressed as a whole."""
    if plain_size(payload) > _GROUP_BYTES:
        return False, payload
    form, data = opened(payload)
    is_packed = form == PACKED and _packed(True, data) == payload
    return is_packed, data if is_packed else payload


def _packed(is_packed: bool, data: bytes) -> bytes:
    return frame(*compress(data)) if is_packed else data


def _digest(block: bytes) -> bytes:
    return blake2b(block, digest_size=16).digest()


def _name_digest(directory: bytes) -> str:
    return blake2b(directory, digest_size=32).hexdigest()
