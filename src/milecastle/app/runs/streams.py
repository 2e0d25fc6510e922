"""Event streams, and their effect on the run when the reader stops."""

from __future__ import annotations

import _thread
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Final, Literal, TypeVar
from weakref import WeakKeyDictionary

from milecastle.app.results import Result
from milecastle.model.checkpoint import Entry
from milecastle.model.event import Event, EventType
from milecastle.support.migration_hints import refuse_mode

S = TypeVar("S")

StreamMode = Literal["updates", "state", "events"]

_TYPES: Final[dict[str, tuple[EventType, ...]]] = {
    "updates": ("update", "interrupt", "emit", "sleep"),
    "state": ("state", "interrupt", "sleep"),
}


def selector(mode: StreamMode) -> Callable[[Event], Event | None]:
    if mode == "events":
        return lambda event: event
    if mode not in ("updates", "state"):
        refuse_mode(mode)
    types = _TYPES[mode]
    return lambda event: event if event.type in types else None


def resting_events(
    found: Result[S], mode: StreamMode, newest: Entry | None = None
) -> list[Event[S]]:
    """Events for a stream running nothing: the thread's interrupts, or its ending.

    ``newest`` is the checkpoint at which it does.
    """
    where: dict[str, Any] = {"run_id": found.run_id, "key": found.thread, "step": found.step}
    if newest is not None:
        where |= {"time": newest.created_at, "seq": newest.seq}

    def event(type: EventType, **fields: Any) -> Event[S]:
        return Event(type=type, **where, **fields)

    events = [
        event(
            "interrupt",
            node=one.node,
            state=found.state,
            data={"id": one.id, "question": one.question, "show": one.show},
        )
        for one in found.interrupts
    ]
    if found.status == "completed":
        events.append(event("state", state=found.state, data={"nodes": found.nodes}))
        events.append(event("graph_complete", data={"reused": True}))
    select = selector(mode)
    return [wanted for each in events if (wanted := select(each)) is not None]


_PATIENCE: Final = 0.25
"""How long, in seconds, a dropped stream waits for its run to be closed."""

_begun: set[Generator[Event, None, None]] = set()
"""Runs that are being read. This keeps them alive: only ``EventStream`` closes them."""


class EventStream:
    """One run's events. ``close()`` ends the run at its last commit.

    A dropped stream does the same in another thread. The garbage collector may drop it at
    any line, also where this thread holds a store lock, which closing needs. Then this
    thread continues after a moment, and the run is closed once the lock is free.
    """

    def __init__(self, events: Generator[Event, None, None]) -> None:
        self._events = events
        self._is_over = True

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:
        if self._is_over:
            self._is_over = False
            _begun.add(self._events)
        try:
            return next(self._events)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        try:
            self._events.close()
        finally:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        _begun.discard(self._events)

    def __del__(self) -> None:
        if self._is_over:
            return
        closed = _thread.allocate_lock()
        closed.acquire()
        try:
            _thread.start_new_thread(_close, (self._events, closed))  # takes no lock, unlike Thread
        except RuntimeError:
            return  # the interpreter shuts down: the run can be resumed
        closed.acquire(timeout=_PATIENCE)


def _close(events: Generator[Event, None, None], closed: _thread.LockType) -> None:
    try:
        events.close()
    finally:
        _begun.discard(events)
        closed.release()


StreamParts = tuple[AsyncGenerator[Event, None], Callable[[], Awaitable[None]] | None]
"""The events of a run on an event loop, and what is to be called after the last of them."""

_begun_on: WeakKeyDictionary[Any, set[AsyncGenerator[Event, None]]] = WeakKeyDictionary()
"""Runs that are being read on a loop. This keeps them alive: a loop that shuts down closes them."""


class AsyncEventStream:
    """One run's events on an event loop. ``aclose()`` ends the run at its last commit.

    A dropped stream does the same in a task. If the loop ends before that has begun, the
    loop closes the run itself: it is one async generator, which nothing else closes.
    """

    def __init__(self, begin: Callable[[], Awaitable[StreamParts]]) -> None:
        self._begin = begin
        self._events: AsyncGenerator[Event, None] | None = None
        self._conclude: Callable[[], Awaitable[None]] | None = None
        self._loop: Any = None
        self._is_over = False

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> Event:
        if self._is_over:
            raise StopAsyncIteration
        try:
            if self._events is None:
                self._events, self._conclude = await self._begin()
                self._note(self._events)
            return await anext(self._events)
        except StopAsyncIteration:
            self._end()
            if self._conclude is not None:
                await self._conclude()
            raise
        except BaseException:
            self._end()
            raise

    async def aclose(self) -> None:
        try:
            if self._events is not None:
                await self._events.aclose()
        finally:
            self._end()

    def _note(self, events: AsyncGenerator[Event, None]) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        _begun_on.setdefault(self._loop, set()).add(events)

    def _end(self) -> None:
        self._is_over = True
        if self._events is not None:
            _forget(self._loop, self._events)

    def __del__(self) -> None:
        if self._is_over or self._events is None:
            return
        try:
            self._loop.call_soon_threadsafe(_close_soon, self._loop, self._events)
        except RuntimeError:  # the loop has ended
            _forget(self._loop, self._events)


def _close_soon(loop: Any, events: AsyncGenerator[Event, None]) -> None:
    async def close() -> None:
        try:
            await events.aclose()
        finally:
            _forget(loop, events)

    loop.create_task(close())


def _forget(loop: Any, events: AsyncGenerator[Event, None]) -> None:
    _begun_on.get(loop, set()).discard(events)
