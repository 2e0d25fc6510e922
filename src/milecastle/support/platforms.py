"""Refusals of features that a system does not support."""

from __future__ import annotations

import sys

from milecastle.errors import InvalidRequest


def refuse_windows(what: str, instead: str) -> None:
    """Refuse something that was never made to work on Windows.

    Raises:
        InvalidRequest: this is Windows.
    """
    if sys.platform == "win32":
        raise InvalidRequest(f"{what} not supported on Windows: {instead}")
