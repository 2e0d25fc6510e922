"""Types that msgspec reads into, prepared by one thread before any other uses them.

msgspec works out a class's fields when it first reads into it, and shows the class its partial
result while it still works. A second thread reading into the same class meanwhile ends the
process with a segmentation fault. So every class of ours read into is prepared with the
import of its module, and one of the user's before each use.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

import msgspec

from milecastle.support.forking import call_in_child

T = TypeVar("T")

_locks = [Lock()]  # a child process gets its own


def prepared(shape: type[T]) -> type[T]:
    with _locks[0]:
        msgspec.msgpack.Decoder(shape)
    return shape


def convert(value: Any, shape: Any, *, strict: bool = True) -> Any:
    return msgspec.convert(value, prepared(shape), strict=strict)


def _forget() -> None:
    _locks[0] = Lock()


call_in_child(_forget)
