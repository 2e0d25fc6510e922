"""The heartbeat of a simulated worker: its thread is an event of the timeline."""

from __future__ import annotations

from math import ceil
from typing import Any

from milecastle.fleet.heartbeat import Heartbeat
from tests.simulation.fleet.processes import Process
from tests.simulation.fleet.timeline import SECOND
from tests.simulation.fleet.virtual_loop import Dead

__all__ = ["SimulatedHeartbeat"]


_NEAR = 2.0
_LOOK = 1.0
"""Between beats that are further apart, a worker looks for silent ones about this often."""


class SimulatedHeartbeat(Heartbeat):
    """Beats on virtual time. A course may have it beat on the event loop: a control."""

    def __init__(self, store: Any, **named: Any) -> None:
        super().__init__(store, **named)
        self._process: Process = store.process
        self._is_over = False
        is_near = self._interval <= _NEAR
        self._pause = self._interval / (1 if is_near else ceil(self._interval / _LOOK))

    def start(self) -> None:
        self._store.beat(self._describe())
        self._later()

    def stop(self) -> None:
        self._is_over = True

    def _later(self) -> None:
        self._process.course.timeline.after(self._pause, self._step, self._process)

    def _step(self) -> None:
        process = self._process
        if self._is_over:
            return
        blocked = process.loop.blocked_until
        if process.course.beats_on_loop and blocked > process.now:
            process.course.timeline.at(blocked, self._step, process)
            return
        process.beating_since = began = process.now
        try:
            self._try(self._beat if self._is_due() else self.reclaim)
        except Dead:
            return
        process.beating_since = None
        if process.now - began > 2 * SECOND:
            process.disturb()
        self._later()

    def _is_due(self) -> bool:
        is_each = self._pause == self._interval
        return is_each or self.age is None or self.age > self._interval - self._pause / 2
