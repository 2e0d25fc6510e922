"""The seeds of random tests: each commit has its own, so that over time many are tried.

They follow from the commit's id and are printed. ``MILECASTLE_SEED=N`` repeats those of another
run; without git they begin at 0. ``just proof`` takes thousands from 0 on.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@cache
def first_seed() -> int:
    """The first seed of this run."""
    if given := os.environ.get("MILECASTLE_SEED"):
        return int(given)
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout[:8], 16)


def seeds(count: int, part: int = 0, parts: int = 1, *, below: int = 1_000_000) -> range:
    """The seeds of one of ``parts`` tests that share ``count`` seeds."""
    size = count // parts
    first = first_seed() % (below - count) + part * size
    print(f"MILECASTLE_SEED={first_seed()}: seeds {first} to {first + size - 1}")
    return range(first, first + size)


def sampled(values: Iterable[Any], *, one_in: int) -> list[Any]:
    """Parameters of which each commit runs its share; the others are slow."""
    chosen = first_seed() % one_in
    return [
        pytest.param(value, marks=() if number % one_in == chosen else pytest.mark.slow)
        for number, value in enumerate(values)
    ]
