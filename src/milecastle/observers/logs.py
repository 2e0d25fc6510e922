"""An observer writing to the standard library's logging. Never state values.

An event is one line, whatever its names contain.
"""

from __future__ import annotations

import logging

from milecastle.model.event import Event
from milecastle.support.printable import printable

_LOUD = {"node_failed": logging.WARNING, "graph_failed": logging.ERROR}
_QUIET = {"state_created", "state_copied", "edge_evaluate", "state", "update", "checkpoint_load"}


class LoggingObserver:
    def __init__(self, logger: str = "milecastle") -> None:
        self._logger = logging.getLogger(logger)

    def on_event(self, event: Event) -> None:
        level = _LOUD.get(event.type, logging.DEBUG if event.type in _QUIET else logging.INFO)
        if not self._logger.isEnabledFor(level):
            return
        parts = [event.type.replace("_", " ")]
        if event.node is not None:
            parts.append(f"node={event.node}")
        parts.append(f"step={event.step}")
        if event.seq is not None:
            parts.append(f"seq={event.seq}")
        parts += [f"{name}={value}" for name, value in event.facts.items()]
        if event.key is not None:
            parts.append(f"thread={event.key.thread}")
        parts.append(f"run={event.run_id}")
        self._logger.log(level, printable(" ".join(parts)))
