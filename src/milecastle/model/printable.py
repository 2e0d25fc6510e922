"""Escapes untrusted text for terminals and logs.

Terminals execute control characters, bidirectional overrides show a name in a different order, and
newlines forge lines. All such text passes through here before it leaves the program.
"""

from __future__ import annotations

from milecastle.errors import with_readable_threads

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format, surrogate, line and paragraph separator."""


def printable(text: str) -> str:
    r"""The text on one line: unsafe characters as escapes such as ``\n``, ``\x1b``, ``\u202e``.

    The threads of subgraphs are named as in errors.
    """
    if text.isprintable():
        return text
    text = with_readable_threads(text)
    return "".join(
        char.encode("unicode_escape").decode() if is_unsafe(char) else char for char in text
    )


_SHOWN = 80
_LISTED = 8


def quoted(*names: object) -> str:
    """Names that a program gave, for a message: escaped, each at most 80 characters, a few of them.

    What is not a ``str`` is not a name: only its type is shown.
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
    """Whether a terminal or a line reader may interpret a character."""
    from unicodedata import category

    return category(char) in _UNSAFE
