from __future__ import annotations

import sys

from milecastle.errors import InvalidRequest


def refuse_windows(what: str, instead: str) -> None:
    """Raise ``InvalidRequest`` on Windows, for something never made to work there."""
    if sys.platform == "win32":
        raise InvalidRequest(f"{what} not supported on Windows: {instead}")
