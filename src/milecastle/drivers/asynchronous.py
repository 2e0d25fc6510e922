"""The asynchronous driver: performs effects on an event loop.

- Async nodes are awaited in place. Sync nodes run in a thread, so that a blocking call cannot
  stop the loop, unless they were declared ``inline``.
- A store that may wait is never called on the loop.
- Cancellation and timeouts reach inside async nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from time import monotonic
from typing import Any, cast

from milecastle.drivers.committer import committer_for
from milecastle.drivers.host import Host
from milecastle.engine.effects import (
    AwaitTasks,
    Commit,
    Effect,
    Emit,
    Evaluate,
    Finished,
    RunTask,
    RunTasks,
    Stopped,
)
from milecastle.engine.plan import Ending
from milecastle.errors import RunCancelled
from milecastle.model.event import Event
from milecastle.ports.store import GroupStore

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
        self._committer = committer_for(host.store) if isinstance(host.store, GroupStore) else None
        self._executor: ThreadPoolExecutor | None = None
        self._running: dict[asyncio.Task[Any], RunTask] = {}

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
        effects, host = self._effects, self._host
        outcome: Any = None
        error: BaseException | None = None
        turns = 0
        try:
            while True:
                try:
                    effect = effects.send(outcome) if error is None else effects.throw(error)
                except StopIteration as stop:
                    self._ending = stop.value
                    return
                outcome = error = None
                if isinstance(effect, Emit):
                    if (event := host.tell(effect.event)) is not None:
                        yield event
                    continue
                turns += 1
                try:
                    if turns % _TURNS == 0:
                        await asyncio.sleep(0)
                    outcome = await self._perform(effect)
                except BaseException as raised:
                    error = raised
        except GeneratorExit:
            await self._stop()
            raise
        finally:
            await self._clean_up()

    async def _clean_up(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case RunTask():
                if effect.node.is_async and not self._host.watching:
                    return await effect.node.call(effect.state, effect.config, effect.context)
                self._host.check()
                return await self._watch(self._run(effect))
            case Evaluate():
                return await self._watch(effect.function(effect.state))
            case Commit():
                return await self._commit(effect)
            case RunTasks():
                self._host.check()
                for task in effect.tasks:
                    self._running[asyncio.ensure_future(self._run(task))] = task
                return await self._wait()
            case AwaitTasks():
                return await self._wait()
            case _:
                raise AssertionError(
                    f"the asynchronous driver does not know {type(effect).__name__}"
                )

    async def _run(self, task: RunTask) -> Any:
        node = task.node
        if node.is_async:
            return await node.call(task.state, task.config, task.context)
        if node.inline:
            return node.call(task.state, task.config, task.context)
        call = copy_context().run
        return await self._in_thread(call, node.call, task.state, task.config, task.context)

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=32, thread_name_prefix="milecastle")
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    async def _commit(self, effect: Commit) -> None:
        """Write a batch. A cancellation waits until the outcome is known."""
        store = self._host.store
        if store is None or not store.blocking:
            self._host.commit(effect.batch)
            return
        if self._committer is not None:
            await self._committer.commit(effect.batch)
            return
        writing = asyncio.ensure_future(self._in_thread(self._host.commit, effect.batch))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    async def _watch(self, running: Awaitable[Any]) -> Any:
        """Await a node, and stop it when the run must stop."""
        if not self._host.watching:
            return await running
        task = asyncio.ensure_future(running)
        try:
            await self._wait_watching({task})
        except BaseException:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return task.result()

    async def _wait(self) -> list[Finished]:
        """The tasks of a step that ended; at least one."""
        done = await self._wait_watching(set(self._running))
        finished: list[Finished] = []
        for future in done:
            task = self._running.pop(cast("asyncio.Task[Any]", future))
            error = _error_of(future)
            finished.append(Finished(task, None if error else future.result(), error))
        return finished

    async def _wait_watching(self, tasks: set[asyncio.Task[Any]] | set[asyncio.Future[Any]]) -> Any:
        host = self._host
        while True:
            done, _ = await asyncio.wait(
                tasks, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return done
            host.check()

    def _patience(self) -> float | None:
        host = self._host
        if host.deadline is None:
            return None if host.cancel is None else _GLANCE
        left = max(0.0, host.deadline - monotonic())
        return left if host.cancel is None else min(left, _GLANCE)

    async def _stop(self) -> None:
        """The reader of a stream went away: let the engine close its record."""
        error: BaseException | None = Stopped(RunCancelled())
        try:
            while True:
                effect = self._effects.throw(error) if error else self._effects.send(None)
                error = None
                try:
                    if isinstance(effect, Commit):
                        await self._commit(effect)
                    elif isinstance(effect, Emit):
                        self._host.tell(effect.event)
                except Exception as raised:
                    error = raised
        except (StopIteration, RunCancelled, Stopped):
            return


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    if future.cancelled():
        return asyncio.CancelledError()
    return future.exception()
