"""Progress: where a run stands between two effects. The engine's only mutable state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milecastle.engine.guard import Guard
from milecastle.engine.plan import RunPlan

__all__ = ["Progress"]


class Progress:
    """The state of the thread as this run sees it, and what it will do next.

    ``nodes`` produced the state, ``next`` are to run, ``route`` are nodes whose edges are still
    to be evaluated. ``results`` are updates of tasks that finished before the run was cut short.
    """

    __slots__ = ("guard", "next", "nodes", "results", "route", "since", "step", "values")

    def __init__(self, plan: RunPlan) -> None:
        position = plan.position
        entry = position.entry
        self.guard = Guard(plan.config)
        self.values = position.values
        self.results: Mapping[str, Mapping[str, Any]] = position.results
        self.step = position.step
        self.next = position.next
        self.route = position.route
        self.nodes = position.nodes
        self.since = entry.created_at if entry else plan.clock.now()
