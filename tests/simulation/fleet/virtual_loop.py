"""The event loop of a simulated process: on virtual time, with threads that are events.

What is called off the loop happens later, as an event of its own; meanwhile the loop runs. A loop
can be blocked, as by a node that computes for long: its threads continue. The loop of a process
that died ends its tasks without any effect: whatever they call raises ``Dead``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from itertools import count
from typing import Any, cast

from tests.simulation.fleet.timeline import SECOND, Actor, Timeline

__all__ = ["Dead", "VirtualLoop", "current_actor", "is_held_up", "simulated_thread"]

_LAST_TURNS = 500
_threads = count(1)
_current: list[tuple[int, Actor | None]] = [(0, None)]


class Dead(BaseException):
    """The process that runs this is dead: nothing that it still does has any effect."""


def simulated_thread() -> int:
    """The number of the simulated thread that runs now."""
    return _current[-1][0]


def current_actor() -> Any:
    """The process that runs now."""
    return _current[-1][1]


def is_held_up(actor: Actor) -> bool:
    """Whether a call of the process has begun, and what runs now happens inside of it."""
    return any(each is actor for _, each in _current)


def _expire(timer: asyncio.TimerHandle) -> None:
    if not timer.cancelled():
        timer._run()


class VirtualLoop:
    """As much of an event loop as a worker and its runs use."""

    def __init__(self, timeline: Timeline, actor: Actor) -> None:
        self._timeline = timeline
        self._actor = actor
        self._ready: deque[tuple[Callable[..., Any], tuple[Any, ...], Context]] = deque()
        self._timers: dict[asyncio.TimerHandle, None] = {}
        self._calls: dict[asyncio.Future[Any], None] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._is_due = False
        self._thread = next(_threads)
        self._loop = cast("asyncio.AbstractEventLoop", self)
        self.blocked_until = 0
        self.errors: list[str] = []

    # ---- what asyncio asks for

    def time(self) -> float:
        return self._timeline.now / SECOND

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._loop)

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._loop, **named)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> None:
        self._ready.append((callback, args, context or copy_context()))
        if not self._is_due:
            self._announce()

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self._loop, context)
        self._timers[timer] = None
        self._timeline.at(round(when * SECOND) + 1, partial(self._fire, timer), self._actor)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers.pop(handle, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Dead):
            self.errors.append(f"{context.get('message')}: {error!r}")

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()
        if self._actor.is_dead:
            future.set_exception(Dead())
            return future
        self._calls[future] = None
        call = partial(self._call, future, func, *args)
        self._timeline.after(self._timeline.delay(), call, self._actor)
        return future

    # ---- turns

    def _announce(self) -> None:
        if not self._is_due and not self._actor.is_dead:
            self._is_due = True
            moment = max(self._timeline.now, self.blocked_until)
            self._timeline.at(moment, self._turn, self._actor)

    def _turn(self) -> None:
        self._is_due = False
        if self.blocked_until > self._timeline.now:
            self._announce()
            return
        self._run_ready()
        if self._ready:
            self._announce()

    def _run_ready(self) -> None:
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        _current.append((self._thread, self._actor))
        try:
            for _ in range(len(self._ready)):
                callback, args, context = self._ready.popleft()
                try:
                    context.run(callback, *args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    told = {"message": f"Exception in callback {callback!r}", "exception": error}
                    self.call_exception_handler(told)
        finally:
            _current.pop()
            asyncio._set_running_loop(outer)

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        if timer in self._timers:
            del self._timers[timer]
            self.call_soon(_expire, timer)

    def _call(self, future: asyncio.Future[Any], func: Callable[..., Any], *args: Any) -> None:
        """A thread calls a function, unless the call was cancelled before it began."""
        if future.cancelled():
            self._calls.pop(future, None)
            return
        returned, error = None, None
        _current.append((next(_threads), self._actor))
        try:
            returned = Context().run(func, *args)
        except BaseException as raised:
            error = raised
        finally:
            _current.pop()
        if not self._actor.is_dead:
            settle = partial(self.call_soon, self._settle, future, returned, error)
            self._timeline.after(self._timeline.delay(), settle, self._actor)

    def _settle(
        self, future: asyncio.Future[Any], returned: Any, error: BaseException | None
    ) -> None:
        self._calls.pop(future, None)
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(returned)

    @property
    def is_at_work(self) -> bool:
        """Whether the code that runs now runs on this loop, and not in a thread."""
        return simulated_thread() == self._thread

    def block(self, seconds: float) -> None:
        """Something on the loop does not return for a while."""
        self.blocked_until = self._timeline.now + round(seconds * SECOND)

    def bury(self) -> None:
        """The process is dead: end its tasks, none of which can do anything any more."""
        for future in list(self._calls):
            if not future.done():
                future.set_exception(Dead())
        for task in list(self._tasks):
            task.cancel()
        for _ in range(_LAST_TURNS):
            if not self._ready:
                timers, self._timers = self._timers, {}
                for timer in timers:
                    self.call_soon(_expire, timer)
            if not self._ready:
                return
            self._run_ready()
