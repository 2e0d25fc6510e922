"""A problem that ``compile()`` found: what, where, and what to write instead."""

from __future__ import annotations

import msgspec

__all__ = ["Place", "Problem"]


class Place(msgspec.Struct, frozen=True, order=True):
    """A line in the user's file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Problem(msgspec.Struct, frozen=True):
    """One finding. ``code`` is stable (``MC110``) and has a page in the docs."""

    code: str
    message: str
    place: Place | None = None
    suggestion: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{where}{self.code} {self.message}{hint}"
