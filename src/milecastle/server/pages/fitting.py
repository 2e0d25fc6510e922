"""How much of a list a page has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

__all__ = ["BYTES", "fitting"]

T = TypeVar("T")

BYTES: Final = 200_000
"""The bytes that the rows of a page may take."""


def fitting(items: Iterable[T], size: Callable[[T], int], most: int = BYTES) -> Iterator[T]:
    """The first items, as many as have room."""
    taken = 0
    for item in items:
        taken += size(item)
        if taken > most:
            return
        yield item
