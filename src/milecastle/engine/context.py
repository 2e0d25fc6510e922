"""What a node may ask about the run that it is part of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from milecastle.model.keys import ThreadKey

__all__ = ["Context", "Origin"]


class Origin(msgspec.Struct, frozen=True):
    """Where a state came from: the run and the nodes that produced it, and when."""

    run_id: str
    nodes: tuple[str, ...]
    timestamp: datetime


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Injected into a node that has a parameter named ``ctx``.

    ``origin`` tells where the state that the node received came from. ``thread`` is ``None``
    without a store.
    """

    run_id: str
    node: str
    step: int
    thread: ThreadKey | None
    config: Any
    attempt: int
    origin: Origin
