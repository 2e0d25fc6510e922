"""The asynchronous driver: performs effects on an event loop.

- Async nodes are awaited in place. Sync nodes run in a thread, so that a blocking call cannot
  stop the loop, unless they were declared ``inline``.
- A store that may wait is never called on the loop, nor behind sync nodes: it has threads of its
  own.
- Cancellation and timeouts reach inside async nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import get_ident
from time import monotonic
from typing import Any

from milecastle.drivers.calling import call_task
from milecastle.drivers.host import Host
from milecastle.drivers.loop_commits import commits_of
from milecastle.drivers.loop_tasks import LoopTasks
from milecastle.drivers.own_thread import call_in_own_thread
from milecastle.drivers.stopping import advance, last_effects
from milecastle.engine.asking import current_task
from milecastle.engine.effects import (
    AwaitTasks,
    Begin,
    CancelTasks,
    Commit,
    Effect,
    Emit,
    Evaluate,
    Finished,
    Recall,
    RunTask,
    StartTasks,
)
from milecastle.engine.plan import Ending
from milecastle.errors import InvalidRequest
from milecastle.model.event import Event
from milecastle.ports.store import Batch

__all__ = ["Drive"]

_TURNS = 64
"""After so many effects without a real wait, other tasks of the loop get their turn."""

_GLANCE = 0.05
"""How often, in seconds, a cancel event is looked at while a node runs."""


class Drive:
    """One run on the loop. Iterate ``events()``; then ``result()`` says how it came to rest."""

    def __init__(self, effects: Generator[Effect, Any, Ending], host: Host) -> None:
        self._ending: Ending | None = None
        self._effects = effects
        self._host = host
        self._commit: Callable[[Batch], Coroutine[Any, Any, None]] = self._commit_alone
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._tasks = LoopTasks(self._run, None if host.is_read else host.tell)
        self._outside: RunTask | None = None
        self._write = host.commit
        self._thread = get_ident()
        host.commit = self._commit_from_node
        host.emit = self._tasks.emit
        host.aemit = self._tasks.aemit

    async def finish(self) -> Ending:
        """Run to the end without reading events."""
        async for _ in self.events():
            pass
        return self.result()

    def result(self) -> Ending:
        """How the run came to rest, once its events were read to the end."""
        if self._ending is None:
            raise RuntimeError("the run has not come to rest")
        return self._ending

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events that the host wants to see. Closing it ends the run at its last commit."""
        effects, host, tasks = self._effects, self._host, self._tasks
        outcome: Any = None
        error: BaseException | None = None
        turns = 0
        self._enter()
        try:
            while True:
                try:
                    effect = effects.send(outcome) if error is None else effects.throw(error)
                except StopIteration as stop:
                    self._ending = stop.value
                    return
                outcome = error = None
                if isinstance(effect, Emit):
                    for wanted in self._tell([effect.event]):
                        yield wanted
                    continue
                turns += 1
                try:
                    if turns % _TURNS == 0:
                        await asyncio.sleep(0)
                    if type(effect) is Commit:
                        await self._commit(effect.batch)
                    elif type(effect) is RunTask and effect.node.is_async and not host.watching:
                        outcome = await call_task(effect)
                    elif isinstance(effect, AwaitTasks):
                        end = host.as_monotonic(effect.until)
                        while (outcome := await self._wait(end)) is None:
                            for wanted in self._tell(tasks.take_events()):
                                yield wanted
                    else:
                        outcome = await self._perform(effect)
                    if tasks.has_events:
                        for wanted in self._tell(tasks.take_events()):
                            yield wanted
                except GeneratorExit:
                    raise
                except BaseException as raised:
                    error = raised
        except GeneratorExit:
            await self._stop()
            raise
        finally:
            current_task.set(self._outside)
            await self._tasks.close()
            for pool in self._pools.values():
                pool.shutdown(wait=False, cancel_futures=True)

    def _enter(self) -> None:
        """Take note of the loop that runs this, and of the task that it is a part of."""
        if self._host.committer is not None:
            self._commit = commits_of(self._host.committer).commit
        self._host.acommit = self._commit
        self._outside = current_task.get(None)
        self._tasks.enter()

    def _tell(self, events: list[Event]) -> list[Event]:
        """Tell events; those that the host wants to see. Who reads them is not in the node."""
        wanted = [event for event in map(self._host.tell, events) if event is not None]
        if wanted:
            current_task.set(self._outside)
        return wanted

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case RunTask():
                self._host.check()
                return await self._watch(self._run(effect))
            case StartTasks():
                self._host.check()
                return self._tasks.start(effect.tasks)
            case CancelTasks():
                return self._tasks.cancel(effect.tasks)
            case Evaluate():
                return await self._watch(effect.function(effect.state))
            case Begin():
                store = self._host.store
                if store is None or not store.blocking:
                    return self._host.begin(effect)
                return await self._in_thread("store", self._host.begin, effect)
            case Recall():
                store = self._host.store
                if store is None or not store.blocking:
                    return effect.read()
                return await self._in_thread("store", effect.read)
            case _:
                raise AssertionError(
                    f"the asynchronous driver does not know {type(effect).__name__}"
                )

    async def _run(self, task: RunTask) -> Any:
        node = task.node
        if node.is_async:
            return await call_task(task)
        if node.policy.inline:
            return call_task(task)
        if node.policy.timeout is not None:
            return await call_in_own_thread(copy_context().run, call_task, task)
        return await self._in_thread("nodes", copy_context().run, call_task, task)

    async def _in_thread(self, of: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call in one of the threads that nodes have, or the store."""
        pool = self._pools.get(of)
        if pool is None:
            pool = self._pools[of] = ThreadPoolExecutor(
                max_workers=self._host.max_parallel, thread_name_prefix=f"milecastle-{of}"
            )
        return await asyncio.get_running_loop().run_in_executor(pool, function, *args)

    async def _commit_alone(self, batch: Batch) -> None:
        """Write a batch by itself. A cancellation waits until the outcome is known."""
        store = self._host.store
        if store is None or not store.blocking:
            self._write(batch)
            return
        writing = asyncio.ensure_future(self._in_thread("store", self._write, batch))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    def _commit_from_node(self, batch: Batch) -> None:
        """What a sync node records; an async one must not stop the loop for it."""
        store = self._host.store
        if store is not None and store.blocking and get_ident() == self._thread:
            raise InvalidRequest(
                "ctx.once() would stop the event loop: await ctx.aonce(...) in an async node"
            )
        self._write(batch)

    async def _watch(self, running: Awaitable[Any]) -> Any:
        """Await a node, and stop it when the run must stop."""
        if not self._host.watching:
            return await running
        task = asyncio.ensure_future(running)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._patience(None))
                if not task.done():
                    self._host.check()
        except BaseException:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return task.result()

    async def _wait(self, end: float | None) -> list[Finished] | None:
        """Tasks that ended; none if the time came; ``None`` if there are events to be told."""
        while True:
            if self._tasks.has_events:
                return None
            finished = self._tasks.take_finished()
            if finished or (end is not None and monotonic() >= end):
                return finished
            await self._tasks.news(self._patience(end))
            self._host.check()

    def _patience(self, end: float | None) -> float | None:
        """How long to wait at most before looking at the time, and at who may stop the run."""
        host = self._host
        ends = [moment for moment in (host.deadline, end, self._tasks.due()) if moment is not None]
        left = max(0.0, min(ends) - monotonic()) if ends else None
        if host.cancel is None:
            return left
        return _GLANCE if left is None else min(left, _GLANCE)

    async def _stop(self) -> None:
        """The reader of a stream went away: let the engine close its record."""
        last, error = last_effects(self._effects), None
        while (effect := advance(last, error)) is not None:
            error = await self._perform_last(effect)

    async def _perform_last(self, effect: Commit | Emit) -> Exception | None:
        if isinstance(effect, Emit):
            return self._host.perform_last(effect)
        try:
            await self._commit(effect.batch)
        except Exception as raised:
            return raised
        return None
