"""How deep and how large a stored value may be.

The limits are checked when writing, so that a value is accepted or refused alike by every
store, and again when reading, so that damaged or hostile bytes cannot exhaust the process.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_INT_BYTES"]

MAX_DEPTH: Final = 200
"""Levels of nesting: ``[[1]]`` has two. Containers and objects count, scalars do not."""

MAX_BYTES: Final = 128 * 1024 * 1024
"""Size of an encoded body before compression."""

MAX_INT_BYTES: Final = 64 * 1024
"""Size of one int; half a million bits."""
