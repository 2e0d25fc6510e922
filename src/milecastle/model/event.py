"""An event: something that happened in a run, told to observers and to who reads a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from milecastle.model.keys import ThreadKey

__all__ = ["Event", "EventType"]

EventType = Literal[
    "graph_start",
    "graph_complete",
    "graph_failed",
    "state_created",
    "state_copied",
    "node_start",
    "node_complete",
    "node_failed",
    "edge_evaluate",
    "edge_transition",
    "cycle",
    "checkpoint_save",
    "checkpoint_load",
    "checkpoint_resume",
    "interrupt",
    "sleep",
    "retry",
    "emit",
    "update",
    "state",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. Fields that do not apply are ``None``; ``event["node"]`` works as well.

    ``state`` and ``update`` are for who reads the stream; built-in observers never print them.
    ``data`` holds what only some events have: the target of an edge, an error's type, a count.
    """

    type: EventType
    run_id: str
    key: ThreadKey | None = None
    step: int = 0
    seq: int | None = None
    node: str | None = None
    state: Any = None
    update: Any = None
    data: Mapping[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self.__struct_fields__:
            return getattr(self, name)
        return self.data[name]

    def keys(self) -> Iterator[str]:
        """The names that ``event[name]`` answers to."""
        yield from self.__struct_fields__
        yield from self.data
