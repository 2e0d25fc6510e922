from __future__ import annotations

import sys
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from milecastle.errors import Place

if TYPE_CHECKING:
    pass


def is_async(function: Any) -> bool:
    import inspect

    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        plain_function(function)
    )


def name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def qualified_name(function: Any) -> str | None:
    function = plain_function(function)
    name = getattr(function, "__qualname__", None)
    return None if name is None or "<lambda>" in name else f"{function.__module__}:{name}"


def plain_function(function: Any) -> Any:
    while isinstance(function, partial | staticmethod):
        function = function.func if isinstance(function, partial) else function.__func__
    if not hasattr(function, "__code__") and not isinstance(function, type):
        call: Any = getattr(cast("object", type(function)), "__call__", None)  # noqa: B004
        if hasattr(call, "__code__"):
            return call
    return function


_PACKAGE = __name__.partition(".")[0]


def caller() -> Place:
    frame = _user_frame()
    return Place(frame.f_code.co_filename, frame.f_lineno)


def names_around(cls: Any) -> dict[str, Any]:
    """The names a class written inside a function can see there, while that function runs.

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
    module = str(frame.f_globals.get("__name__"))
    return module == "typing" or module.partition(".")[0] == _PACKAGE
