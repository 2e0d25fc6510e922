"""Values as the columns have them: ids, text, sources and failures.

- A UUID takes 16 bytes, any other id its text and one byte more. No two ids have the same bytes,
  and none has no bytes: that is left to mean "as before".
- PostgreSQL's text has no NUL, and UTF-8 has no lone surrogates. Each of these becomes an escape
  character and four hex digits; so does the escape character itself. All other text stays as it is.
- Sources' numbers are on disk: never renumber.
- A failure is JSON in the fields' order. Reading is strict: text none of our writers could have
  stored is ``Corrupted``, and is never quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from milecastle.errors import Corrupted
from milecastle.model.checkpoint import Source
from milecastle.model.run import Failure, FailureClass, TaskFailure
from milecastle.support.prepared import prepared

NO_ID = b"\2"
"""Means that there is no id."""

_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_HEX = re.compile("(?:[0-9a-f]{2})+").fullmatch
_SIZE = 16
_TEXT, _LONGER_TEXT = b"\0", b"\1\0"
_SHORT, _LONG = 0, 1


@lru_cache(maxsize=8192)
@lru_cache(maxsize=4096)
def id_to(text: str) -> bytes:
    """An id's bytes. Cached: an entry has the head's id as its parent."""
    if _UUID(text):
        return bytes.fromhex(text.replace("-", ""))
    body = text.encode("utf-8", "surrogatepass")
    return (_TEXT if len(body) != _SIZE - 1 else _LONGER_TEXT) + body


def is_uuid(text: str) -> bool:
    return len(id_to(text)) == _SIZE


def id_from(stored: bytes) -> str:
    if len(stored) == _SIZE:
        digits = stored.hex()
        parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
        return "-".join(parts)
    for mark in (_TEXT, _LONGER_TEXT):
        if stored.startswith(mark):
            return _text(stored[len(mark) :])
    raise _damaged("an id")


def time_of(identifier: bytes) -> int | None:
    if len(identifier) != _SIZE or identifier[6] >> 4 != 7:
        return None
    return int.from_bytes(identifier[:6]) * 1000


@lru_cache(maxsize=4096)
def origin_to(run_id: str, fingerprint: str) -> bytes:
    run = id_to(run_id)
    if len(run) == _SIZE and _HEX(fingerprint):
        return bytes((_SHORT,)) + run + bytes.fromhex(fingerprint)
    body = fingerprint.encode("utf-8", "surrogatepass")
    return bytes((_LONG,)) + len(run).to_bytes(4) + run + body


@lru_cache(maxsize=4096)
def origin_from(stored: bytes) -> tuple[str, str]:
    if stored[:1] == bytes((_SHORT,)) and len(stored) > 1 + _SIZE:
        return id_from(stored[1 : 1 + _SIZE]), stored[1 + _SIZE :].hex()
    if stored[:1] != bytes((_LONG,)):
        raise _damaged("an origin")
    end = 5 + int.from_bytes(stored[1:5])
    return id_from(stored[5:end]), _text(stored[end:])


def _text(stored: bytes) -> str:
    try:
        return stored.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise _damaged("an id") from None


def _damaged(what: str) -> Corrupted:
    return Corrupted(f"{what} that milecastle never writes", place="a column of ids")


_MARK = "\x1b"
_HARD = re.compile("[\0\x1b\ud800-\udfff]")
_ESCAPED = re.compile("\x1b(.{4})")
_STRANGE = re.compile("[\0\ud800-\udfff]")
_NAMES = msgspec.json.Decoder(tuple[str, ...])


def escape(text: str) -> str:
    return _HARD.sub(_marked, text) if _HARD.search(text) else text


def unescape(stored: str) -> str:
    return _ESCAPED.sub(_unmarked, stored) if _MARK in stored else stored


def is_plain(text: str) -> bool:
    return _STRANGE.search(text) is None


@lru_cache(maxsize=4096)
def names_to(names: tuple[str, ...]) -> str:
    """Names as text: empty for none, a plain one unchanged, others as a JSON list."""
    if not names:
        return ""
    if len(names) == 1 and names[0] and names[0][0] != "[":
        return escape(names[0])
    return msgspec.json.encode([escape(name) for name in names]).decode()


@lru_cache(maxsize=4096)
def names_from(stored: str) -> tuple[str, ...]:
    if not stored:
        return ()
    if stored[0] != "[":
        return (unescape(stored),)
    try:
        names = _NAMES.decode(stored)
    except msgspec.DecodeError:
        raise Corrupted("names that milecastle never writes", place="a column of names") from None
    return tuple(map(unescape, names)) if "\\u001b" in stored else names


def thread_bounds(after: str | None) -> tuple[str, str]:
    """The lowest thread id to list, and the one not to list though it is not lower.

    No id has a NUL or a lone surrogate, so an id above such a text is above another, too.
    """
    if not after:
        return "", ""
    strange = _STRANGE.search(after)
    if strange is None:
        return after, after
    start = after[: strange.start()]
    return (start, start) if strange.group() == "\0" else (start + "\ue000", "")


def _marked(found: re.Match[str]) -> str:
    return f"{_MARK}{ord(found.group()):04x}"


def _unmarked(found: re.Match[str]) -> str:
    return chr(int(found.group(1), 16))


HELD: Final = 8
"""From here on are the sources that leave a thread in its current step."""

SOURCES: Mapping[Source, int] = MappingProxyType(
    {
        "input": 0,
        "step": 1,
        "update": 2,
        "fork": 3,
        "interrupt": 8,
        "answer": 9,
        "sleep": 10,
        "takeover": 11,
    }
)

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_Number = Annotated[int, msgspec.Meta(ge=_LOWEST, le=_HIGHEST)]


@prepared
class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    failure_class: FailureClass
    resumable: bool
    error_type: str
    message: str
    traceback: tuple[str, ...]
    causes: tuple[str, ...]
    attempt: _Number
    time: _Number
    node: str | None
    tasks: tuple[tuple[str, str, str, str, _Number], ...] = ()


_DECODER = msgspec.json.Decoder(_Stored)


def failure_to(failure: Failure) -> str:
    """A failure's text; ``OverflowError`` for a number no other store accepts."""
    if not (_LOWEST <= failure.attempt <= _HIGHEST and _LOWEST <= failure.time <= _HIGHEST):
        raise OverflowError("a number in a failure has more than 64 bits")
    stored = _Stored(
        failure.failure_class,
        failure.resumable,
        escape(failure.error_type),
        escape(failure.message),
        tuple(map(escape, failure.traceback)),
        tuple(map(escape, failure.causes)),
        failure.attempt,
        failure.time,
        None if failure.node is None else escape(failure.node),
        tuple(
            (
                escape(one.task),
                escape(one.node),
                escape(one.error_type),
                escape(one.message),
                one.attempt,
            )
            for one in failure.tasks
        ),
    )
    return msgspec.json.encode(stored).decode()


def failure_from(run_id: str, text: str) -> Failure:
    try:
        stored = _DECODER.decode(text)
    except msgspec.DecodeError:
        raise Corrupted("a value that milecastle never writes", place="runs.failure") from None
    return Failure(
        run_id=run_id,
        failure_class=stored.failure_class,
        resumable=stored.resumable,
        error_type=unescape(stored.error_type),
        message=unescape(stored.message),
        traceback=tuple(map(unescape, stored.traceback)),
        causes=tuple(map(unescape, stored.causes)),
        attempt=stored.attempt,
        time=stored.time,
        node=None if stored.node is None else unescape(stored.node),
        tasks=tuple(
            TaskFailure(
                task=unescape(task),
                node=unescape(node),
                error_type=unescape(error_type),
                message=unescape(message),
                attempt=attempt,
            )
            for task, node, error_type, message, attempt in stored.tasks
        ),
    )
