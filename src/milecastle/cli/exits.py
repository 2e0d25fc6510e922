"""Exit codes. They are stable: scripts depend on them."""

from __future__ import annotations

from typing import Final

from milecastle.errors import (
    Conflict,
    Corrupted,
    FormatTooNew,
    InvalidRequest,
    MilecastleError,
    ResumeRefused,
    StoreError,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 3
UNREACHABLE: Final = 4
REFUSED: Final = 5
CONFLICT: Final = 6
STOPPED: Final = 130
"""Ctrl-C, as shells count it."""

_CODES: Final[tuple[tuple[type[MilecastleError], int], ...]] = (
    (ResumeRefused, REFUSED),
    (InvalidRequest, USAGE),
    (Conflict, CONFLICT),
    (Corrupted, FAILED),
    (FormatTooNew, FAILED),
    (StoreError, UNREACHABLE),
)


def code_of(error: MilecastleError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
