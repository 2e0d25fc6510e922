"""A call's tasks on an event loop, and the values their nodes emit.

Async nodes are awaited in place. Sync nodes run in a thread, so a blocking call cannot block
the loop, unless they were declared ``inline``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from time import monotonic
from typing import Any, Final

from milecastle.drivers.node_caller import Deadlines, NodeCaller, perform
from milecastle.engine.context import Around, RunningTask
from milecastle.errors import NodeTimeout
from milecastle.graph.structure import CompiledGraph
from milecastle.model.event import Event
from milecastle.model.task import Finished, RunTask
from milecastle.ports.executor import EmitEvent
from milecastle.ports.task import TaskPort

AHEAD: Final = 64
"""The maximum number of events emitted ahead of the reader."""

_GLANCE: Final = 0.05
"""How often, in seconds, a thread that waits for room checks whether there is still a reader."""


class _Carried(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class LoopTasks:
    """A ``LoopExecutor``. Finished tasks and emitted events wait here to be taken.

    Made on the loop, because only there is anything emitted: so it is emitted in order. Without a
    stream reader nodes never wait: ``tell`` receives emitted values immediately.
    """

    def __init__(
        self,
        graphs: Sequence[CompiledGraph],
        ports: Mapping[str, TaskPort],
        most: int,
        tell: EmitEvent | None,
        around: Around | None = None,
    ) -> None:
        self._calls = NodeCaller(graphs, ports, self._run, on_loop=True, around=around)
        self.call = self._calls.call
        self._most = most
        self._tell = tell
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[asyncio.Future[Any], RunningTask] = {}
        self._finished: list[Finished] = []
        self.emitted: deque[Event] = deque()
        self._deadlines = Deadlines()
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Condition | None = None
        self._notifying: asyncio.Future[None] | None = None
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._closed = False

    async def _run(self, running: RunningTask) -> Any:
        policy = running.node.policy
        if running.node.is_async:
            return await perform(running)
        if policy.inline:
            return perform(running)
        if policy.timeout is not None:
            return await call_in_own_thread(copy_context().run, perform, running)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="milecastle-nodes")
        call: Callable[..., Any] = copy_context().run
        return await self._loop.run_in_executor(self._pool, call, perform, running)

    async def _run_carried(self, running: RunningTask) -> Any:
        """``_run`` in its own task: raising such an exception there would end the loop."""
        try:
            return await self._run(running)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _Carried(error) from None

    def start(self, tasks: Sequence[RunTask]) -> None:
        for task in tasks:
            running = self._calls.open(task)
            future = asyncio.ensure_future(self._run_carried(running))
            self._running[future] = running
            self._deadlines.add(running)
            future.add_done_callback(self._ended)

    def cancel(self, tasks: Sequence[RunTask]) -> None:
        wanted = {id(task) for task in tasks}
        for future, running in self._running.items():
            if id(running.task) in wanted:
                future.cancel()

    async def wait(self, seconds: float | None) -> list[Finished | Event]:
        if not (self._finished or self.emitted):
            due = self._deadlines.next()
            if due is not None:
                left = max(0.0, due - monotonic())
                seconds = left if seconds is None else min(left, seconds)
            self._news = asyncio.get_running_loop().create_future()
            try:
                if seconds is None:
                    await self._news
                else:
                    await asyncio.wait({self._news}, timeout=seconds)
            finally:
                self._news = None
        return [*self.take_events(), *self._take_finished()]

    def _take_finished(self) -> list[Finished]:
        now = monotonic()
        while (late := self._deadlines.pass_(now)) is not None:
            running, seconds = late
            future = next((f for f, other in self._running.items() if other is running), None)
            if future is not None:
                del self._running[future]
                future.cancel()
                running.end()
                error = NodeTimeout(node=running.node.name, seconds=seconds)
                self._finished.append(Finished(running.task, None, error))
        finished, self._finished = self._finished, []
        return finished

    def _ended(self, future: asyncio.Future[Any]) -> None:
        running = self._running.pop(future, None)
        if running is None:
            if not future.cancelled():
                future.exception()  # it was abandoned
            return
        self._deadlines.drop(running)
        running.end()
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        error = error.error if isinstance(error, _Carried) else error
        self._finished.append(Finished(running.task, None if error else future.result(), error))
        self._wake()

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # ---- events

    def take_events(self) -> list[Event]:
        events = list(self.emitted)
        self.emitted.clear()
        if self._room is not None:
            self._notifying = asyncio.ensure_future(_notify(self._room))
        return events

    def emit(self, event: Event) -> None:
        """Emit from a sync node: wait for room in its thread; on the loop, never wait."""
        if threading.get_ident() == self._thread:
            self._add(event)
            return
        if self._closed:
            return
        telling = asyncio.run_coroutine_threadsafe(self.aemit(event), self._loop)
        while not self._closed:  # a loop that has stopped would never answer
            with suppress(TimeoutError):
                telling.result(_GLANCE)
                return

    async def aemit(self, event: Event) -> None:
        """Emit from an async node: wait for room without blocking the loop."""
        if self._tell is None:
            if self._room is None:
                self._room = asyncio.Condition()
            async with self._room:
                await self._room.wait_for(lambda: self._closed or len(self.emitted) < AHEAD)
        if not self._closed:
            self._add(event)

    def _add(self, event: Event) -> None:
        if self._tell is not None:
            self._tell(event)
            return
        self.emitted.append(event)
        self._wake()

    async def close(self) -> None:
        self._closed = True
        self._calls.close()
        running, self._running = self._running, {}
        for future in running:
            future.cancel()
        self.emitted.clear()
        if self._room is not None:
            await _notify(self._room)
        if running:
            await asyncio.gather(*running, return_exceptions=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


async def _notify(room: asyncio.Condition) -> None:
    async with room:
        room.notify_all()


async def call_in_own_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call off the event loop. If this is cancelled, the call's result is discarded.

    A pool would lose one of its threads to every stuck call, and the process could not end.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(returned: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((returned, error))

    def work() -> None:
        returned, error = None, None
        try:
            returned = function(*args)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(settle, returned, error)

    threading.Thread(target=work, name="milecastle-timed", daemon=True).start()
    returned, error = await ended
    if error is not None:
        raise error
    return returned
