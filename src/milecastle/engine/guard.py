"""The guard: step limit and cycle detection, O(1) per step.

A cycle is a node that comes back within the window while nothing in the state has changed since
its last visit. The state is not compared: each change raises a version, and visits remember it.
"""

from __future__ import annotations

from math import inf
from typing import Final

from milecastle.errors import CycleDetected, MaxStepsExceeded
from milecastle.model.policies import ExecutionConfig

_NEVER: Final = (-inf, -1, 0)
"""When a node was visited, at which version of the state, and how often."""


class Guard:
    """Watches one call of ``invoke`` or ``resume``. ``path`` is every node entered so far."""

    def __init__(self, config: ExecutionConfig) -> None:
        self._max_steps = inf if config.max_steps is None else config.max_steps
        self._window = config.cycle_window if config.cycle_detection is not False else -1
        self._strict = config.cycle_detection == "strict"
        self._visits: dict[str, tuple[float, int, int]] = {}
        self.steps = 0
        self.version = 0
        self.path: list[str] = []

    def enter_step(self, names: tuple[str, ...]) -> None:
        """Count a step and note its nodes before they run.

        Raises:
            MaxStepsExceeded: the step is one too many.
            CycleDetected: a node closes a cycle.
        """
        self.steps += 1
        if self.steps > self._max_steps:
            raise MaxStepsExceeded(max=int(self._max_steps), reached=self.steps, node=names[0])
        path, visits, version = self.path, self._visits, self.version
        for name in names:
            path.append(name)
            visit = len(path)
            last, seen, count = visits.get(name, _NEVER)
            visits[name] = visit, version, count + 1
            if visit - last <= self._window and (seen == version or self._strict):
                recent = path[-self._window - 1 :]
                raise CycleDetected(node=name, recent=recent, strict=self._strict)

    def visit_count(self, name: str) -> int:
        """How often the node was entered."""
        return self._visits.get(name, _NEVER)[2]
