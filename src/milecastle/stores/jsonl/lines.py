r"""Self-checking lines.

A line is ``{"length":N,<N bytes of JSON>,"check":"<32 hex digits>"}\n``. The check is BLAKE2b of
the line's check before (nothing for the first) and of everything up to the check.

Rules:

- Length, checksum and the fixed parts between them cover every bit of a line, its end included;
  the chain covers the order of lines.
- A broken line is *torn* when it is the last, was cut off while it was being written, and so was
  never acknowledged: it has no newline, and is shorter than its length field or ends in bytes
  never written. Everything else is *damage*. No flipped bit makes a whole line look torn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from milecastle.disk.files import read_at

ROOT_CHECK: Final = b""
"""The check before the first line."""

TAIL: Final = 45
"""Bytes of a line from the comma before its check to its end."""

CHECK: Final = 32
CHECK_END: Final = 35
"""Bytes of a check, and of a line from its check on."""

_HASH: Final = blake2b(digest_size=16)  # of nothing: a copy costs less than another
_START: Final = b'{"length":'
_PREFIX: Final = re.compile(rb'\{"length":([1-9][0-9]{0,9}),')
_CUT_PREFIX: Final = re.compile(rb'\{"length":[0-9]*')
_LONGEST_PREFIX: Final = 21
_CHECK: Final = b',"check":"'
_END: Final = b'"}\n'
_CHUNK: Final = 1 << 18


class Line(NamedTuple):
    offset: int
    size: int
    body: bytes
    check: bytes


class BrokenLine(Exception):
    """An incomplete or damaged line; ``torn`` says which."""

    def __init__(self, offset: int, torn: bool) -> None:
        super().__init__(offset, torn)
        self.offset = offset
        self.torn = torn


def frame(body: bytes, previous: bytes) -> tuple[bytes, bytes]:
    """Frame a JSON object after the check ``previous``; return the line and its check."""
    content = b'{"length":%d,%b' % (len(body) - 2, body[1:-1])
    check = _check(previous, content)
    return b"".join((content, _CHECK, check, _END)), check


def _check(previous: bytes, content: bytes) -> bytes:
    hash = _HASH.copy()
    hash.update(previous + content)
    return hash.hexdigest().encode()


def lines(fd: int, offset: int, end: int, previous: bytes) -> Iterator[Line]:
    """A file's lines from ``offset``, where a line starts, up to ``end``.

    Raises: BrokenLine: one is torn or damaged.
    """
    window, base = b"", offset
    while offset < end:
        at = offset - base
        size = _size_of(window[at : at + _LONGEST_PREFIX])
        if size is None or at + size > len(window):
            wanted = min(max(size or 0, _CHUNK), end - offset)
            window, base, at = read_at(fd, wanted, offset), offset, 0
            size = _size_of(window[:_LONGEST_PREFIX])
            if size is not None and size > len(window):
                window = read_at(fd, min(size, end - offset), offset)
        raw = window[at : at + size] if size else b""
        line = _open(raw, offset, previous)
        if line is None:
            raise BrokenLine(offset, _is_torn(fd, offset, end, size))
        yield line
        offset += line.size
        previous = line.check


def line_at(fd: int, offset: int, size: int | None = None) -> Line:
    """The line at ``offset``, verified against the check before it."""
    if size is None:
        size = _size_of(read_at(fd, _LONGEST_PREFIX, offset)) or 1
    before = min(offset, TAIL)
    raw = read_at(fd, size + before, offset - before)
    previous = raw[before - CHECK_END : before - len(_END)] if before else ROOT_CHECK
    line = _open(raw[before:], offset, previous)
    if line is None:
        raise BrokenLine(offset, torn=False)
    return line


def last_line(fd: int, end: int) -> Line:
    reach = _CHUNK
    while True:
        start = max(0, end - reach)
        data = read_at(fd, end - start, start)
        found = data.rfind(b"\n", 0, len(data) - 1)
        if found >= 0 or start == 0:
            break
        reach *= 8
    offset = start + found + 1
    if data[-1:] != b"\n":
        size = _size_of(data[found + 1 : found + 1 + _LONGEST_PREFIX])
        raise BrokenLine(offset, _is_torn(fd, offset, end, size))
    return line_at(fd, offset, end - offset)


def _size_of(start: bytes) -> int | None:
    found = _PREFIX.match(start)
    return None if found is None else found.end() + int(found[1]) + TAIL


def _open(raw: bytes, offset: int, previous: bytes) -> Line | None:
    found = _PREFIX.match(raw)
    if found is None or len(raw) != found.end() + int(found[1]) + TAIL:
        return None
    content, check = raw[:-TAIL], raw[-CHECK_END:-3]
    if raw[-TAIL:-CHECK_END] != _CHECK or raw[-3:] != _END or _check(previous, content) != check:
        return None
    return Line(offset, len(raw), b"{%b}" % content[found.end() :], check)


def _is_torn(fd: int, offset: int, end: int, size: int | None) -> bool:
    if read_at(fd, 1, end - 1) == b"\0":
        unwritten = True
    elif size is None:
        rest = read_at(fd, min(end - offset, _LONGEST_PREFIX + 1), offset)
        unwritten = _START.startswith(rest) or _CUT_PREFIX.fullmatch(rest) is not None
    else:
        unwritten = offset + size > end
    return unwritten and not _has_newline(fd, offset, end)


def _has_newline(fd: int, offset: int, end: int) -> bool:
    return any(
        b"\n" in read_at(fd, min(_CHUNK, end - start), start)
        for start in range(offset, end, _CHUNK)
    )
