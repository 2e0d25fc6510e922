"""Channels that integrations store in another library's log, beside its state.

They are listed here, and not in the integration, because such a thread is read, and pruned, where
that library is not installed.
"""

from __future__ import annotations

from typing import Final

NEEDED: Final = "__needed__"
"""The id of the oldest checkpoint that the state is rebuilt from: pruning keeps it."""

HOSTED: Final = ("__checkpoint__", "__writes__", "__late__", "__stray__", NEEDED)
"""The library's own checkpoint, and what its tasks wrote."""
