"""An observer that writes to the standard library's logging. Never values of the state."""

from __future__ import annotations

import logging

from milecastle.model.event import Event

__all__ = ["LoggingObserver"]

_LOUD = {"node_failed": logging.WARNING, "graph_failed": logging.ERROR}
_VALUES = frozenset({"question", "show"})
"""What events hold besides ``state`` and ``update`` that comes from a state."""

_QUIET = {"state_created", "state_copied", "edge_evaluate", "state", "update", "checkpoint_load"}


class LoggingObserver:
    """Writes one line per event to a logger, by default ``milecastle``."""

    def __init__(self, logger: str = "milecastle") -> None:
        self._logger = logging.getLogger(logger)

    def on_event(self, event: Event) -> None:
        """Log the event: what, where, and for which run."""
        level = _LOUD.get(event.type, logging.DEBUG if event.type in _QUIET else logging.INFO)
        if not self._logger.isEnabledFor(level):
            return
        parts = [event.type.replace("_", " ")]
        if event.node is not None:
            parts.append(f"node={event.node}")
        parts.append(f"step={event.step}")
        if event.seq is not None:
            parts.append(f"seq={event.seq}")
        parts += [f"{name}={value}" for name, value in event.data.items() if name not in _VALUES]
        if event.key is not None:
            parts.append(f"thread={event.key.thread}")
        parts.append(f"run={event.run_id}")
        self._logger.log(level, " ".join(parts))
