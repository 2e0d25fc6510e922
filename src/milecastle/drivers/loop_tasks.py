"""The tasks of a step on an event loop, and what their nodes emit."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from milecastle.drivers.timing import Deadlines
from milecastle.engine.effects import Finished, RunTask
from milecastle.errors import NodeTimeout
from milecastle.model.event import Event

__all__ = ["LoopTasks"]

AHEAD: Final = 64
"""The most events that may be emitted ahead of who reads them."""

_GLANCE: Final = 0.05
"""How often, in seconds, a thread that waits for room looks whether anybody still reads."""


class LoopTasks:
    """Runs tasks side by side. What ended, and what was emitted, waits here to be taken.

    If nobody reads a stream, what is emitted waits for nobody: ``tell`` hears it at once.
    """

    def __init__(
        self,
        run: Callable[[RunTask], Awaitable[Any]],
        tell: Callable[[Event], object] | None = None,
    ) -> None:
        self._run = run
        self._tell = tell
        self._running: dict[asyncio.Future[Any], RunTask] = {}
        self._finished: list[Finished] = []
        self._events: deque[Event] = deque()
        self._deadlines = Deadlines()
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Condition | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notifying: asyncio.Future[None] | None = None
        self._thread = 0
        self._closed = False

    def enter(self) -> None:
        """Take note of the loop: only on it is anything told, so that it is told in order."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def start(self, tasks: Sequence[RunTask]) -> None:
        """Start tasks; they run from the next turn of the loop on."""
        for task in tasks:
            future = asyncio.ensure_future(self._run(task))
            self._running[future] = task
            self._deadlines.add(task)
            future.add_done_callback(self._ended)

    def cancel(self, tasks: Sequence[RunTask]) -> None:
        """Stop tasks that can be stopped."""
        wanted = {id(task) for task in tasks}
        for future, task in self._running.items():
            if id(task) in wanted:
                future.cancel()

    def take_finished(self) -> list[Finished]:
        """The tasks that ended since the last time; those out of time are stopped."""
        now = monotonic()
        while (late := self._deadlines.pass_(now)) is not None:
            task, seconds = late
            future = next((f for f, running in self._running.items() if running is task), None)
            if future is not None:
                del self._running[future]
                future.cancel()
                error = NodeTimeout(node=task.node.name, seconds=seconds)
                self._finished.append(Finished(task, None, error))
        finished, self._finished = self._finished, []
        return finished

    def due(self) -> float | None:
        """When the next task is out of time."""
        return self._deadlines.next()

    async def news(self, patience: float | None) -> None:
        """Wait until something ended or was emitted, or for so many seconds."""
        if self._finished or self._events:
            return
        self._news = asyncio.get_running_loop().create_future()
        try:
            if patience is None:
                await self._news
            else:
                await asyncio.wait({self._news}, timeout=patience)
        finally:
            self._news = None

    def _ended(self, future: asyncio.Future[Any]) -> None:
        task = self._running.pop(future, None)
        if task is None:
            if not future.cancelled():
                future.exception()  # nobody waits for it any more
            return
        self._deadlines.drop(task)
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        self._finished.append(Finished(task, None if error else future.result(), error))
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # ---- events

    @property
    def has_events(self) -> bool:
        """Whether something was emitted that nobody has taken."""
        return bool(self._events)

    def take_events(self) -> list[Event]:
        """What was emitted since the last time; who waited for room goes on."""
        events = list(self._events)
        self._events.clear()
        if self._room is not None:
            self._notifying = asyncio.ensure_future(_notify(self._room))
        return events

    def emit(self, event: Event) -> None:
        """For sync nodes: wait for room in their thread; on the loop itself nobody can wait."""
        loop = self._loop
        if loop is None or threading.get_ident() == self._thread:
            self._add(event)
            return
        if self._closed:
            return
        telling = asyncio.run_coroutine_threadsafe(self.aemit(event), loop)
        while not self._closed:  # a loop that has stopped would never answer
            with suppress(TimeoutError):
                telling.result(_GLANCE)
                return

    async def aemit(self, event: Event) -> None:
        """For async nodes: wait for room without stopping the loop."""
        if self._tell is None:
            if self._room is None:
                self._room = asyncio.Condition()
            async with self._room:
                await self._room.wait_for(lambda: self._closed or len(self._events) < AHEAD)
        if not self._closed:
            self._add(event)

    def _add(self, event: Event) -> None:
        if self._tell is not None:
            self._tell(event)
            return
        self._events.append(event)
        self._wake()

    async def close(self) -> None:
        """Cancel what still runs, and let nobody wait."""
        self._closed = True
        running, self._running = self._running, {}
        for future in running:
            future.cancel()
        self._events.clear()
        if self._room is not None:
            await _notify(self._room)
        if running:
            await asyncio.gather(*running, return_exceptions=True)


async def _notify(room: asyncio.Condition) -> None:
    async with room:
        room.notify_all()
