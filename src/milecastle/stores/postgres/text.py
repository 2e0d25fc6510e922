"""Text that PostgreSQL cannot keep, as text that it can.

Its text has no NUL, and UTF-8 has no lone surrogates. Each of these becomes an escape character
and four hex digits; so does the escape character itself. All other text stays as it is.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from milecastle.errors import Corrupted

__all__ = ["escape", "is_plain", "names_from", "names_to", "thread_bounds", "unescape"]

_MARK = "\x1b"
_HARD = re.compile("[\0\x1b\ud800-\udfff]")
_ESCAPED = re.compile("\x1b(.{4})")
_STRANGE = re.compile("[\0\ud800-\udfff]")
_NAMES = msgspec.json.Decoder(tuple[str, ...])


def escape(text: str) -> str:
    """The text as it is stored."""
    return _HARD.sub(_marked, text) if _HARD.search(text) else text


def unescape(stored: str) -> str:
    """The text as it was given."""
    return _ESCAPED.sub(_unmarked, stored) if _MARK in stored else stored


def is_plain(text: str) -> bool:
    """Whether PostgreSQL can keep the text as it is."""
    return _STRANGE.search(text) is None


@lru_cache(maxsize=4096)
def names_to(names: tuple[str, ...]) -> str:
    """Names as text: none as nothing, a plain one as it is, any others as a JSON list."""
    if not names:
        return ""
    if len(names) == 1 and names[0] and names[0][0] != "[":
        return escape(names[0])
    return msgspec.json.encode([escape(name) for name in names]).decode()


@lru_cache(maxsize=4096)
def names_from(stored: str) -> tuple[str, ...]:
    """Names out of their text."""
    if not stored:
        return ()
    if stored[0] != "[":
        return (unescape(stored),)
    try:
        names = _NAMES.decode(stored)
    except msgspec.DecodeError:
        raise Corrupted("names that were never written", place="a column of names") from None
    return tuple(map(unescape, names)) if "\\u001b" in stored else names


def thread_bounds(after: str | None) -> tuple[str, str]:
    """The lowest thread id to list, and the one not to list though it is not lower.

    No id has a NUL or a lone surrogate, so that what is above such a text is above another, too.
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
