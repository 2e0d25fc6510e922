"""The trace of a run: one JSON line for each thing that became of a node.

A line about a node that ended is on the disk before its checkpoint is. A last line without its
end was cut off by a death and says nothing; any other line that does not decode is damage.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import time_ns
from typing import Literal

import msgspec

from milecastle.errors import Corrupted
from milecastle.recovery.durable import make_folders
from milecastle.stores.jsonl.files import append, sync

__all__ = ["Trace", "TraceEvent", "read_trace"]

TraceEvent = Literal["started", "complete", "failed", "reused"]


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    time: int
    event: TraceEvent
    node: str


class Trace:
    """Appends to the trace of one run. Lines of several threads do not mix."""

    def __init__(self, path: Path) -> None:
        make_folders(path.parent)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, 0o666)

    def note(self, event: TraceEvent, node: str) -> None:
        """Write a line; that a node ended is durable when this returns."""
        line = msgspec.json.encode(_Line(time_ns() // 1000, event, node)) + b"\n"
        append(self._fd, line)
        if event in ("complete", "failed"):
            sync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def read_trace(path: Path) -> dict[str, TraceEvent]:
    """The last thing that became of each node; nothing if there is no trace."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    whole, _, _ = data.rpartition(b"\n")
    try:
        lines = msgspec.json.decode(
            b"[" + b",".join(whole.split(b"\n") if whole else []) + b"]", type=list[_Line]
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupted(f"the trace does not decode ({error})", place=str(path)) from None
    return {line.node: line.event for line in lines}
