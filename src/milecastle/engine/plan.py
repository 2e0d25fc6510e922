"""What a run is asked to do, and how it came to rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.checkpoint import Source
from milecastle.model.policies import ExecutionConfig
from milecastle.ports.clock import Clock

__all__ = ["Ending", "RunPlan"]


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked to do.

    ``update`` is an input to apply first (``None``: go on from the position). ``opening`` is the
    source of an entry to append before going on, with ``note`` for the history. ``telling`` says
    whether anybody listens to events.
    """

    graph: CompiledGraph
    config: ExecutionConfig
    run_id: str
    position: Position
    clock: Clock
    journal: Journal | None = None
    interval: int = 1
    update: Mapping[str, Any] | None = None
    opening: Source | None = None
    note: str = ""
    node_config: Any = None
    telling: bool = False


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run came to rest: the values, and where it stands."""

    status: Literal["completed", "interrupted"]
    values: dict[str, Any]
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    step: int
    time: int
