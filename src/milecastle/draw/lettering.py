"""Names made fit to draw: cleaned, shortened and measured.

The widths are our own small tables: those of the interpreter change with its Unicode version.
"""

from __future__ import annotations

_WIDE = (
    (0x1100, 0x115F),
    (0x2E80, 0x303E),
    (0x3041, 0xA4CF),
    (0xA960, 0xA97F),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE6F),
    (0xFF00, 0xFF60),
    (0xFFE0, 0xFFE6),
    (0x1F300, 0x1F64F),
    (0x1F680, 0x1F6FF),
    (0x1F900, 0x1FAFF),
    (0x20000, 0x3FFFD),
)
_NARROWEST = ((0x0300, 0x036F), (0x200B, 0x200D), (0x20D0, 0x20FF), (0xFE00, 0xFE0F))
# Not allowed in XML, or able to turn the rest of a line around.
_UNSAFE = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0x200E, 0x200F),
    (0x202A, 0x202E),
    (0x2066, 0x2069),
    (0xD800, 0xDFFF),
    (0xFDD0, 0xFDEF),
)
_SPACES = "\t\n\v\f\r\x85\u2028\u2029"

# In hundredths of the font size, for the widest of the usual sans-serif faces.
_GLYPHS = {"ijl.,:;'|!": 34, "frt()[]{}- /": 42, "mwMW%@": 98, '"*s_czkxvy': 56}
_ADVANCE = {char: advance for chars, advance in _GLYPHS.items() for char in chars}


def clean(name: str) -> str:
    cleaned = ""
    for char in name:
        code = ord(char)
        is_unsafe = _within(code, _UNSAFE) or code & 0xFFFE == 0xFFFE
        cleaned += " " if char in _SPACES else "\ufffd" if is_unsafe else char
    return cleaned


def shorten(name: str, limit: int) -> str:
    """The name in at most ``limit`` cells, cut in the middle: beginnings are often alike."""
    if cells(name) <= limit:
        return name
    tail = _fit(name[::-1], (limit - 1) // 3)[::-1]
    return _fit(name, limit - 1 - cells(tail)) + "\u2026" + tail


def _fit(name: str, limit: int) -> str:
    used = 0
    for index, char in enumerate(name):
        used += _cell(char)
        if used > limit:
            return name[:index]
    return name


def cells(text: str) -> int:
    return sum(map(_cell, text))


def pixels(text: str, size: int) -> int:
    return -(-sum(map(_advance, text)) * size // 100)


def _cell(char: str) -> int:
    code = ord(char)
    if code < 0x300:
        return 1
    return 0 if _within(code, _NARROWEST) else 2 if _within(code, _WIDE) else 1


def _advance(char: str) -> int:
    if char in _ADVANCE:
        return _ADVANCE[char]
    if char.isascii():
        return 74 if char.isupper() else 64
    return (0, 76, 104)[_cell(char)]


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)
