"""The asynchronous driver: performs effects on an event loop.

- The loop's executor runs tasks (``loop_tasks.py``).
- A blocking store is never called on the loop, nor behind sync nodes: it has its own threads.
- Cancellation and timeouts reach inside async nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from time import monotonic
from typing import Any, TypeVar

from milecastle.drivers.host import (
    BeginRun,
    CommitBatch,
    Host,
    HostServices,
    advance,
    failed_commit,
    last_effects,
)
from milecastle.drivers.loop_commits import commits_of
from milecastle.drivers.node_caller import is_raised_inside, plain_error
from milecastle.engine.context import RunningTask, current_task, running_task
from milecastle.engine.effects import (
    AwaitTasks,
    Begin,
    CancelTasks,
    Commit,
    Effect,
    Emit,
    Evaluate,
    Leave,
    Recall,
    StartTasks,
)
from milecastle.engine.plan import Ending
from milecastle.errors import InvalidRequest
from milecastle.model.event import Event
from milecastle.model.task import Finished, RunTask
from milecastle.ports.executor import LoopExecutor
from milecastle.ports.store import Batch

_TURNS = 64
"""After this many effects without a real wait, other tasks of the loop get their turn."""

_GLANCE = 0.05
"""How often, in seconds, a cancel event is checked while a node runs."""


_NOTHING = nullcontext()

T = TypeVar("T")
AskStore = Callable[..., Awaitable[Any]]


class _Services(HostServices):
    def __init__(
        self, host: Host, executor: LoopExecutor, commit: CommitBatch, ask_store: AskStore
    ) -> None:
        self.host = host
        self._executor = executor
        self._commit = commit
        self._ask_store = ask_store
        self._thread = get_ident()

    async def acommit(self, batch: Batch) -> None:
        await self._commit(batch)

    def emit(self, event: Event) -> None:
        self._executor.emit(event)

    async def aemit(self, event: Event) -> None:
        await self._executor.aemit(event)

    def commit(self, batch: Batch) -> None:
        """Commit a sync node's record; an async node must not block the loop."""
        self._refuse_blocking("aonce")
        self.host.commit(batch)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        self._refuse_blocking("areceive", "asend", "aspawn", "ajoin")
        return function(*args)

    async def acall(self, function: Callable[..., T], *args: Any) -> T:
        found: T = await self._ask_store(function, *args)
        return found

    def _refuse_blocking(self, *instead: str) -> None:
        store = self.host.store
        if store is not None and store.blocking and get_ident() == self._thread:
            raise InvalidRequest(
                "a call of ctx would block the event loop: in an async node use await "
                + " or ".join(f"ctx.{name}(...)" for name in instead)
            )


class Drive:
    """One run on the loop. Iterate ``events()``; then ``result()`` says how it stopped.

    ``within`` is entered while it runs.
    """

    def __init__(
        self, begin: BeginRun, host: Host, within: AbstractContextManager[None] = _NOTHING
    ) -> None:
        self._within = within
        self._ending: Ending | None = None
        self._begin = begin
        self._host = host
        self._commit: CommitBatch = self._commit_alone
        self._pool: ThreadPoolExecutor | None = None
        self._outside: RunningTask | None = None

    async def finish(self) -> Ending:
        async for _ in self.events():
            pass
        return self.result()

    async def hand_over(self) -> Ending:
        host = self._host
        if host.committer is not None:
            self._commit = host.seen(commits_of(host.committer).commit)
        effects = self._begin(HostServices(host))
        error: BaseException | None = None
        try:
            while True:
                try:
                    effect = effects.send(None) if error is None else effects.throw(error)
                except StopIteration as stop:
                    ending: Ending = stop.value
                    return ending
                error = None
                try:
                    if isinstance(effect, Commit):
                        await self._commit(effect.batch)
                    elif isinstance(effect, Emit):
                        host.tell(effect.event)
                    else:
                        raise AssertionError(
                            f"a queued run does not perform {type(effect).__name__}"
                        )
                except BaseException as raised:
                    error = failed_commit(raised)
        finally:
            self._release()

    def result(self) -> Ending:
        if self._ending is None:
            raise RuntimeError("the run has not stopped")
        return self._ending

    async def events(self) -> AsyncGenerator[Event, None]:
        host = self._host
        outcome: Any = None
        error: BaseException | None = None
        executor = self._enter()
        effects = self._begin(_Services(host, executor, self._commit, self._ask_store))
        call, emitted = executor.call, executor.emitted
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
                host.pulse += 1
                try:
                    if host.pulse % _TURNS == 0:
                        await asyncio.sleep(0)
                    if type(effect) is RunTask and not host.watching:
                        outcome = await call(effect)
                    elif isinstance(effect, AwaitTasks):
                        outcome, end = [], host.as_monotonic(effect.until)
                        while not outcome:
                            outcome, events = await self._wait(executor, end)
                            for wanted in self._tell(events):
                                yield wanted
                            if end is not None and monotonic() >= end:
                                break
                            if not outcome:
                                host.check()
                    else:
                        outcome = await self._perform(effect, executor)
                    if emitted:
                        for wanted in self._tell(executor.take_events()):
                            yield wanted
                except GeneratorExit as raised:
                    if type(effect) is not RunTask or not is_raised_inside(raised):
                        raise
                    error = plain_error(raised, effect.node)
                    error.__cause__ = raised
                except BaseException as raised:
                    error = raised if type(effect) is not Commit else failed_commit(raised)
        except GeneratorExit:
            await self._stop(effects)
            raise
        finally:
            await self._leave(executor)

    def _enter(self) -> LoopExecutor:
        host = self._host
        self._within.__enter__()
        if host.committer is not None:
            self._commit = host.seen(commits_of(host.committer).commit)
        self._outside = running_task()
        tell = None if host.is_read else host.tell
        return host.executors.on_loop(host.ports, host.max_parallel, tell)

    def _tell(self, events: list[Event]) -> list[Event]:
        wanted = [event for event in map(self._host.tell, events) if event is not None]
        if wanted:
            current_task.set(self._outside)
        return wanted

    async def _perform(self, effect: Effect, executor: LoopExecutor) -> Any:
        match effect:
            case Commit():
                return await self._commit(effect.batch)
            case RunTask():
                self._host.check()
                return await self._watch(executor.call(effect))
            case StartTasks():
                self._host.check()
                return executor.start(effect.tasks)
            case CancelTasks():
                return executor.cancel(effect.tasks)
            case Evaluate():
                return await self._watch(effect.function(effect.state))
            case Begin():
                return await self._ask_store(self._host.begin, effect)
            case Recall():
                return await self._ask_store(effect.read)
            case Leave():
                return await self._in_thread(effect.save, effect.ending, effect.results)
            case _:
                raise AssertionError(
                    f"the asynchronous driver does not know {type(effect).__name__}"
                )

    async def _ask_store(self, function: Callable[..., Any], *args: Any) -> Any:
        store = self._host.store
        if store is None or not store.blocking:
            return function(*args)
        return await self._in_thread(function, *args)

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                max_workers=self._host.max_parallel, thread_name_prefix="milecastle-store"
            )
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def _commit_alone(self, batch: Batch) -> None:
        store = self._host.store
        if store is None or not store.blocking:
            self._host.commit(batch)
            return
        writing = asyncio.ensure_future(self._in_thread(self._host.commit, batch))
        writing.add_done_callback(_mark_retrieved)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    async def _watch(self, running: Awaitable[Any]) -> Any:
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

    async def _wait(
        self, executor: LoopExecutor, end: float | None
    ) -> tuple[list[Finished], list[Event]]:
        happened = await executor.wait(self._patience(end))
        return (
            [item for item in happened if isinstance(item, Finished)],
            [item for item in happened if isinstance(item, Event)],
        )

    async def _leave(self, executor: LoopExecutor) -> None:
        current_task.set(self._outside)
        try:
            await executor.close()
        finally:
            self._within.__exit__(None, None, None)
        self._host.leave()
        self._release()

    def _release(self) -> None:
        del self._commit  # it may be a method of this very object
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _patience(self, end: float | None) -> float | None:
        host = self._host
        ends = [moment for moment in (host.deadline, end) if moment is not None]
        left = max(0.0, min(ends) - monotonic()) if ends else None
        if host.cancel is None:
            return left
        return _GLANCE if left is None else min(left, _GLANCE)

    async def _stop(self, effects: Generator[Effect, Any, Ending]) -> None:
        """The reader of a stream stopped: let the engine close its record.

        A loop ending cancels its tasks: pending closes are performed all the same.
        """
        last, error = last_effects(effects), None
        cancelled: asyncio.CancelledError | None = None
        while (effect := advance(last, error)) is not None:
            try:
                error = await self._perform_last(effect)
            except asyncio.CancelledError as raised:
                cancelled, error = raised, None
        if cancelled is not None:
            raise cancelled

    async def _perform_last(self, effect: Commit | Emit) -> Exception | None:
        if isinstance(effect, Emit):
            return self._host.perform_last(effect)
        try:
            await self._commit(effect.batch)
        except Exception as raised:
            return raised
        return None


def _mark_retrieved(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
