"""Progress: where a run stands between two effects. The engine's only mutable state."""

from __future__ import annotations

from typing import Any

from milecastle.codec.deltas import Operations
from milecastle.engine.guard import Guard
from milecastle.engine.hidden import Hidden
from milecastle.engine.plan import RunPlan
from milecastle.graph.reducers import SET

__all__ = ["Progress"]


class Progress:
    """The state of the thread as this run sees it, and what it will do next.

    ``nodes`` produced the state, ``next`` are to run, ``route`` are nodes whose edges are still
    to be evaluated. ``hidden`` is what a checkpoint keeps besides the state.
    """

    __slots__ = ("guard", "hidden", "next", "nodes", "route", "since", "step", "values")

    def __init__(self, plan: RunPlan) -> None:
        position = plan.position
        entry = position.entry
        self.guard = Guard(plan.config)
        self.values = position.values
        self.hidden: Hidden = dict(position.hidden)
        self.step = position.step
        self.next = position.next
        self.route = position.route
        self.nodes = position.nodes
        self.since = entry.created_at if entry else plan.clock.now()

    def hide(self, name: str, value: Any) -> Operations:
        """Keep something besides the state; ``None`` to drop it. What the log should say."""
        if value is not None:
            self.hidden[name] = value
        elif self.hidden.pop(name, None) is None:
            return []
        return [SET, name, value]
