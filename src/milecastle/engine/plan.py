"""What a run is asked to do, and how it came to rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from milecastle.engine.hidden import Hidden
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.checkpoint import Source
from milecastle.model.interrupt import Interrupt
from milecastle.model.policies import ExecutionConfig
from milecastle.ports.clock import Clock
from milecastle.ports.services import Services

__all__ = ["Ending", "RunPlan"]


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked to do.

    ``update`` is an input to apply first (``None``: go on from the position). ``opening`` is the
    source of an entry to append before going on, with ``note`` for the history. ``telling`` says
    whether anybody listens to events, ``streaming`` whether somebody reads them as they come.
    ``answers`` are new, by label: the opening entry keeps
    them. ``fresh_attempts`` says that a person decided to try again, so that attempts count anew.
    ``recall`` reads what tasks of the step have left.
    ``ended`` is how a run of a subgraph came to rest that need not be run again.
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
    streaming: bool = False
    answers: Mapping[str, Any] = {}
    fresh_attempts: bool = False
    services: Services | None = None
    recall: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None
    ended: Ending | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run came to rest: the values, and where it stands.

    ``interrupts`` are what it waits for; ``wake_at`` is when a sleeping one may go on.
    """

    status: Literal["completed", "interrupted", "sleeping"]
    values: dict[str, Any]
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    step: int
    time: int
    interrupts: tuple[Interrupt, ...] = ()
    wake_at: int | None = None
    hidden: Hidden = {}
