"""Garbage is collected between simulations, and their graphs, which are large, never."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

__all__ = ["collected_rarely"]

_EVERY = 50


def collected_rarely(seeds: Iterable[int]) -> Iterator[int]:
    """These seeds; garbage is collected after each fiftieth, and what there was before is not."""
    gc.disable()
    gc.freeze()
    try:
        for number, seed in enumerate(seeds, 1):
            yield seed
            if number % _EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
