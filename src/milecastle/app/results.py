from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from milecastle.model.checkpoint import Checkpoint
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.notebook import card, table, value_text
from milecastle.model.run import RunStatus
from milecastle.support.printable import printable
from milecastle.support.reading import StateReader

S = TypeVar("S")


class Result(StateReader, msgspec.Struct, Generic[S], frozen=True, kw_only=True, eq=False):
    """A run's result.

    ``status`` is ``"completed"``, ``"interrupted"`` or ``"sleeping"``; a failure is raised.
    ``node`` produced the state (the last one after a parallel step), ``interrupts`` lists open
    questions and stops, ``wake_at`` is when a sleeping run may continue. ``reused`` is true if
    nothing was run, because the newest run had completed with this input and this is its result. A
    result is also a mapping, the state: ``result["topic"]``, ``"topic" in result``,
    ``dict(result)``. Its ``repr`` contains no state values. For a file run, ``executed``
    says why each node ran, and ``reused_nodes`` lists those that did not. If the graph declares an
    ``output``, the mapping has only its keys (``shown``); ``state`` has them all.
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
    reused: bool = False
    executed: Mapping[str, tuple[str, ...]] = {}
    reused_nodes: tuple[str, ...] = ()
    shown: tuple[str, ...] | None = None

    @property
    def node(self) -> str | None:
        """Node that produced the state."""
        return self.nodes[-1] if self.nodes else None

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = ("status", "thread", "run_id", "step", "nodes", "next")
        return [
            *((name, getattr(self, name)) for name in shown),
            ("interrupts", tuple(found.id for found in self.interrupts)),
            ("keys", tuple(self)),
        ]

    def _repr_html_(self) -> str:
        return _html(self, "Result", {"run": self.run_id})


def log_reuse(result: Result[Any]) -> None:
    import logging

    logging.getLogger("milecastle").info(
        "thread '%s': run %s completed with this input; returning its result without running "
        "anything (again=True starts a new run)",
        printable(result.thread.thread) if result.thread else "",
        result.run_id,
    )


class Snapshot(Checkpoint[S], Generic[S], frozen=True, kw_only=True, eq=False):
    """A checkpoint, its run's status, and its interrupts.

    A mapping of the state, like ``Result``.
    """

    status: RunStatus
    interrupts: tuple[Interrupt, ...] = ()
    wake_at: datetime | None = None

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        interrupts = tuple(found.id for found in self.interrupts)
        shown = super().__rich_repr__()
        return [("status", self.status), *shown, ("interrupts", interrupts)]

    def _repr_html_(self) -> str:
        return _html(self, f"Checkpoint {self.seq}", {"run": self.run_id, "source": self.source})


def _html(found: Result[Any] | Snapshot[Any], title: str, more: Mapping[str, str]) -> str:
    key = found.thread if isinstance(found, Result) else found.key
    named = {"thread": key.thread} if key else {}
    facts = {**named, **more, "step": found.step}
    if found.next:
        facts["next"] = ", ".join(found.next)
    asked = [(one.node, value_text(one.question), one.id) for one in found.interrupts if one.asks]
    questions = [table(["node", "question", "id"], asked)] if asked else []
    values = table(["key", "value"], [(name, value_text(found[name])) for name in found])
    status = "stopped" if found.status == "interrupted" and not asked else found.status
    return card(title, facts, *questions, values, status=status)
