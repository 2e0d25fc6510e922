"""What calls return: typed by the state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from milecastle.model.checkpoint import Checkpoint
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus

__all__ = ["Result", "Snapshot"]

S = TypeVar("S")


class Result(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """How a run came to rest.

    ``status`` is ``"completed"``, ``"interrupted"`` or ``"sleeping"``; a failure is raised.
    ``node`` is the node that produced the state (the last of them after a parallel step),
    ``interrupts`` are what the run waits for, ``wake_at`` is when a sleeping run may go on.
    ``result["topic"]`` reads a key of a dict state. Of a file run, ``executed`` says why each
    node was run and ``reused`` which were not.
    """

    state: S
    status: RunStatus
    run_id: str
    thread: ThreadKey | None
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    step: int
    timestamp: datetime
    interrupts: tuple[Interrupt, ...] = ()
    wake_at: datetime | None = None
    executed: Mapping[str, tuple[str, ...]] = {}
    reused: tuple[str, ...] = ()

    @property
    def node(self) -> str | None:
        """The node that produced the state."""
        return self.nodes[-1] if self.nodes else None

    def __getitem__(self, key: str) -> Any:
        state: Any = self.state
        return state[key] if hasattr(state, "__getitem__") else getattr(state, key)


class Snapshot(Checkpoint[S], Generic[S], frozen=True, kw_only=True):
    """A checkpoint, what became of the run that it belongs to, and what that waits for."""

    status: RunStatus
    interrupts: tuple[Interrupt, ...] = ()
    wake_at: datetime | None = None
