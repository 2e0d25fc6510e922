"""Where the user's code calls this library: the line to report, and the names in sight there."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from milecastle.model.problem import Place

__all__ = ["caller", "names_around"]

_PACKAGE = __name__.partition(".")[0]


def caller() -> Place:
    """The line of the user's code that led here."""
    frame = _user_frame()
    return Place(frame.f_code.co_filename, frame.f_lineno)


def names_around(cls: Any) -> dict[str, Any]:
    """The names that a class written inside a function can see there, while that function runs.

    A class at the top of a module needs none: its names are the module's.
    """
    function, _, _ = getattr(cls, "__qualname__", "").rpartition(".<locals>.")
    frame = _user_frame() if function else None
    while frame is not None:
        if frame.f_code.co_qualname == function:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def _user_frame() -> FrameType:
    first = frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - inspect is slow to load
    while _is_ours(frame):
        if frame.f_back is None:
            return first
        frame = frame.f_back
    return frame


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame is of this library, or of ``StateGraph[State](State)``."""
    module = str(frame.f_globals.get("__name__"))
    return module == "typing" or module.partition(".")[0] == _PACKAGE
