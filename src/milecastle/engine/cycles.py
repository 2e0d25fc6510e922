"""The guard: step limit and cycle detection, O(1) per step.

A cycle is a node coming back within the window while nothing in the state has changed since
its last visit. The state is not compared: each change raises a version, and visits remember it.
Items sent to a node are part of its input: a few are compared with those of its last
visit, many count as others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final

from milecastle.errors import CycleDetected, MaxStepsExceeded
from milecastle.graph.messages import is_same
from milecastle.model.policies import ExecutionConfig

_NEVER: Final = (-inf, -1, 0)
"""When a node was visited, at which version of the state, and how often."""


_MOST_ITEMS: Final = 100


class Guard:
    """Watches one ``invoke`` or ``resume``. ``path`` has every node entered so far."""

    def __init__(self, config: ExecutionConfig) -> None:
        self._max_steps = inf if config.max_steps is None else config.max_steps
        self._window = config.cycle_window if config.cycle_detection is not False else -1
        self._strict = config.cycle_detection == "strict"
        self._visits: dict[str, tuple[float, int, int]] = {}
        self._sent: dict[str, list[Any]] = {}
        self.steps = 0
        self.version = 0
        self.path: list[str] = []

    def enter_step(self, names: tuple[str, ...], sends: Sequence[Any] | None = None) -> None:
        """Count a step and note its nodes before they run, with their sends.

        Raises:
            MaxStepsExceeded: the step is one too many.
            CycleDetected: a node closes a cycle.
        """
        self.steps += 1
        if self.steps > self._max_steps:
            raise MaxStepsExceeded(max=int(self._max_steps), reached=self.steps, node=names[0])
        path, visits, version = self.path, self._visits, self.version
        fresh = self._fresh(names, sends) if sends or self._sent else ()
        for name in names:
            path.append(name)
            visit = len(path)
            last, seen, count = visits.get(name, _NEVER)
            visits[name] = visit, version, count + 1
            if visit - last <= self._window and (
                self._strict or (seen == version and name not in fresh)
            ):
                recent = path[-self._window - 1 :]
                raise CycleDetected(node=name, recent=recent, strict=self._strict)

    def _fresh(self, names: tuple[str, ...], sends: Sequence[Any] | None) -> list[str]:
        found: list[str] = []
        for name in names:
            items = [item for node, item in _pairs(sends) if node == name]
            is_many = len(items) > _MOST_ITEMS
            if is_many or not is_same(self._sent.get(name, []), items):
                found.append(name)
            self._sent[name] = [] if is_many else items
        return found

    def visit_count(self, name: str) -> int:
        return self._visits.get(name, _NEVER)[2]


def _pairs(sends: Sequence[Any] | None) -> Iterator[tuple[str, Any]]:
    return zip(sends[::2], sends[1::2], strict=True) if sends else iter(())
