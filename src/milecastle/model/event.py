"""Events in a run, for observers and stream readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, cast

import msgspec

from milecastle.model.checkpoint import to_datetime
from milecastle.model.keys import ThreadKey
from milecastle.support.reading import Brief

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)
else:  # the default is for type checkers: to them a plain ``Event`` is one of any state
    from typing import TypeVar

    S = TypeVar("S")


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a node emitted with ``keep``, in ``offset`` order.

    ``attempt`` is its task's, and ``begins`` says it is that attempt's first value: the task
    begins again if it is not its first attempt. ``seq`` is the checkpoint its step began with.
    """

    seq: int
    attempt: int
    offset: int
    begins: bool
    node: str
    task: str
    value: Any


EventType = Literal[
    "graph_start",
    "graph_complete",
    "graph_failed",
    "state_created",
    "state_copied",
    "node_start",
    "node_complete",
    "node_failed",
    "item_complete",
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
    "missed",
    "update",
    "state",
]

_FACTS: Final = frozenset(
    {
        "begins",
        "count",
        "done",
        "error",
        "graph",
        "id",
        "index",
        "iteration",
        "iterations",
        "keys",
        "next",
        "nodes",
    }
    | {"offset", "path_length", "reused", "source", "taken", "target", "total", "visits", "wake_at"}
)
"""The part of ``data`` that may be printed: names, numbers and types, never values of a state."""


class Event(Brief, msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """One event. Inapplicable fields are ``None``; ``event["node"]`` also works.

    ``time`` is in microseconds since 1970; ``timestamp`` is the same as a ``datetime``. ``task``
    and ``attempt`` are set on events about a task. ``seq`` is the checkpoint containing the
    reported change, once committed.

    ``state`` (of ``state`` and ``interrupt`` events) and ``update`` are for the reader of the
    stream; built-in observers never print them, and ``repr`` omits them. ``data`` contains fields
    that only some events have: the target of an edge, an error's type, a count.
    """

    type: EventType
    run_id: str
    time: int = 0
    key: ThreadKey | None = None
    step: int = 0
    seq: int | None = None
    node: str | None = None
    task: str | None = None
    attempt: int | None = None
    state: S = cast("Any", None)
    update: Any = None
    data: Mapping[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self.__struct_fields__:
            return getattr(self, name)
        return self.data[name]

    @property
    def timestamp(self) -> datetime:
        """Time of the event, in UTC."""
        return to_datetime(self.time)

    @property
    def facts(self) -> dict[str, Any]:
        """Printable parts of ``task``, ``attempt`` and ``data``."""
        found: dict[str, Any] = {}
        if self.task is not None and self.task != self.node:
            found["task"] = self.task
        if self.attempt is not None:
            found["attempt"] = self.attempt
        return found | {name: value for name, value in self.data.items() if name in _FACTS}

    def __iter__(self) -> Iterator[str]:
        yield from self.__struct_fields__
        yield from self.data

    def __contains__(self, name: object) -> bool:
        return name in self.__struct_fields__ or name in self.data

    def keys(self) -> Iterator[str]:
        """Names ``event[name]`` accepts."""
        return iter(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = ("type", "run_id", "key", "step", "seq", "node", "task", "attempt")
        return [*((name, getattr(self, name)) for name in shown), ("data", tuple(self.data))]
