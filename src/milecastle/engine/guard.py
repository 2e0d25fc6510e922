"""The guard: step limit and cycle detection, O(1) per step.

A cycle is a node that comes back within the window while nothing in the state has changed since
its last visit. The state is not compared: each change raises a version, and visits remember it.
"""

from __future__ import annotations

from math import inf

from milecastle.errors import CycleDetected, MaxStepsExceeded
from milecastle.model.policies import ExecutionConfig


class Guard:
    """Watches one call of ``invoke`` or ``resume``. ``path`` is every node entered so far."""

    def __init__(self, config: ExecutionConfig) -> None:
        self._max_steps = inf if config.max_steps is None else config.max_steps
        self._window = config.cycle_window
        self._detect = config.cycle_detection is not False
        self._strict = config.cycle_detection == "strict"
        self._visits: dict[str, tuple[int, int, int]] = {}
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
        path, version = self.path, self.version
        for name in names:
            path.append(name)
            visit = len(path)
            last = self._visits.get(name)
            if last is None:
                self._visits[name] = (visit, version, 1)
                continue
            self._visits[name] = (visit, version, last[2] + 1)
            if (
                self._detect
                and visit - last[0] <= self._window
                and (self._strict or last[1] == version)
            ):
                recent = path[-self._window - 1 :]
                raise CycleDetected(node=name, recent=recent, strict=self._strict)

    def visit_count(self, name: str) -> int:
        """How often the node was entered."""
        last = self._visits.get(name)
        return last[2] if last else 0
