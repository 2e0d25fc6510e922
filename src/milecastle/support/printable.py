"""Escapes untrusted text for terminals and logs.

Terminals execute control characters, bidirectional overrides show a name in a different order, and
newlines forge lines. All such text passes through here before it leaves the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from milecastle.errors import with_readable_threads

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format, surrogate, line and paragraph separator."""


def printable(text: str) -> str:
    r"""The text on one line: unsafe characters as escapes such as ``\n``, ``\x1b``, ``\u202e``.

    The subgraph threads are named as in errors.
    """
    if text.isprintable():
        return text
    return escaped(with_readable_threads(text), _PRINTABLE)


class Escapes(dict[int, str | int]):
    """Table for ``escaped``: each character's replacement, from ``escape`` if unsafe."""

    def __init__(self, escape: Callable[[str], str]) -> None:
        super().__init__()
        self._escape = escape

    def __missing__(self, code: int) -> str | int:
        char = chr(code)
        found: str | int = self._escape(char) if is_unsafe(char) else code
        if len(self) < _MOST_KEPT:
            self[code] = found
        return found


_MOST_KEPT: Final = 10_000
_PIECE: Final = 16 * 1024
"""Characters that are looked at in one call: each call holds the interpreter's lock."""


def escaped(text: str, escapes: Escapes) -> str:
    if len(text) <= _PIECE:
        return text if text.isprintable() else text.translate(escapes)
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return "".join([escaped(piece, escapes) for piece in pieces])


_PRINTABLE: Final = Escapes(lambda char: char.encode("unicode_escape").decode())


_SHOWN = 80
_LISTED = 8


def quoted(*names: object) -> str:
    """Names a program gave, for a message: escaped, each at most 80 characters, a few of them.

    Anything but a ``str`` is not a name: only its type is shown.
    """
    shown = [_quoted(name) for name in names[:_LISTED]]
    left = len(names) - len(shown)
    return ", ".join([*shown, *([f"and {left} more"] if left else [])])


def path_segment(name: object) -> str:
    """A name in a path, on one line: ``.name`` or ``['a name']``, bounded as above."""
    if isinstance(name, str) and len(name) <= _SHOWN and name.isidentifier() and name.isascii():
        return f".{name}"
    return f"[{_quoted(name)}]"


def _quoted(name: object) -> str:
    if not isinstance(name, str):
        return f"<{type(name).__name__}>"
    text = ascii(name)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]}...{text[-1]}"


def is_unsafe(char: str) -> bool:
    from unicodedata import category

    return category(char) in _UNSAFE
