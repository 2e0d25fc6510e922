"""The numbers by which the log names why an entry is there. They are on disk: never renumber."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from milecastle.model.checkpoint import Source

__all__ = ["HELD", "SOURCES"]

HELD: Final = 8
"""From here on are the sources that leave a thread in the step where it was."""

SOURCES: Mapping[Source, int] = MappingProxyType(
    {
        "input": 0,
        "step": 1,
        "update": 2,
        "fork": 3,
        "interrupt": 8,
        "answer": 9,
        "sleep": 10,
        "takeover": 11,
    }
)
