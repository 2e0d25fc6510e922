"""What calls return: typed by the state."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from milecastle.model.checkpoint import Checkpoint
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus

__all__ = ["Result", "Snapshot"]

S = TypeVar("S")


class Result(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """How a run came to rest.

    ``status`` is ``"completed"`` or ``"interrupted"``; a failure is raised. ``node`` is the node
    that produced the state (the last of them after a parallel step), ``interrupts`` the nodes at
    which the run waits. ``result["topic"]`` reads a key of a dict state.
    """

    state: S
    status: RunStatus
    run_id: str
    thread: ThreadKey | None
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    step: int
    timestamp: datetime

    @property
    def node(self) -> str | None:
        """The node that produced the state."""
        return self.nodes[-1] if self.nodes else None

    @property
    def interrupts(self) -> tuple[str, ...]:
        """The nodes at which the run waits; empty if it does not wait."""
        return self.next if self.status == "interrupted" else ()

    def __getitem__(self, key: str) -> Any:
        state: Any = self.state
        return state[key] if hasattr(state, "__getitem__") else getattr(state, key)


class Snapshot(Checkpoint[S], Generic[S], frozen=True, kw_only=True):
    """A checkpoint, and what became of the run that it belongs to."""

    status: RunStatus

    @property
    def interrupts(self) -> tuple[str, ...]:
        """The nodes at which the thread waits; empty if it does not wait."""
        return self.next if self.status == "interrupted" else ()
