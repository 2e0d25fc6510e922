"""The two ways to call an app, behind one face, so that every scenario runs through both."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from milecastle import (
    App,
    Change,
    CheckpointMetadata,
    Event,
    ExecutionOptions,
    Result,
    Snapshot,
    ThreadKey,
)
from milecastle.app.launching import Wish
from milecastle.app.streams import StreamMode
from milecastle.engine.effects import Commit, Emit, RunTask
from milecastle.model.checkpoint import Entry
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore

S = TypeVar("S")
T = TypeVar("T")

Thread = str | ThreadKey
At = int | str | None


class Runner:
    """Calls an app from plain code."""

    name = "blocking"

    def invoke(
        self,
        app: App[S],
        input: Mapping[str, Any] | S | None,
        thread: Thread | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        return app.invoke(input, thread, options=options, config=config)

    def resume(
        self,
        app: App[S],
        thread: Thread,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        return app.resume(thread, options=options, config=config)

    def stream(
        self,
        app: App[S],
        input: Mapping[str, Any] | S | None,
        thread: Thread | None = None,
        *,
        mode: StreamMode = "updates",
        options: ExecutionOptions | None = None,
        until: Callable[[Event], bool] = lambda event: False,
    ) -> list[Event]:
        """The events, up to and with the first for which ``until`` holds."""
        seen: list[Event] = []
        events: Any = app.stream(input, thread, mode=mode, options=options)
        for event in events:
            seen.append(event)
            if until(event):
                events.close()
                break
        return seen

    def state(self, app: App[S], thread: Thread, at: At = None) -> Snapshot[S]:
        return app.state(thread, at)

    def history(
        self, app: App[S], thread: Thread, limit: int | None = None
    ) -> list[CheckpointMetadata]:
        return list(app.history(thread, limit))

    def update_state(
        self, app: App[S], thread: Thread, update: Mapping[str, Any], at: At = None
    ) -> CheckpointMetadata:
        return app.update_state(thread, update, at)

    def fork(
        self, app: App[S], thread: Thread, at: At, as_thread: Thread | None = None
    ) -> CheckpointMetadata:
        return app.fork(thread, at, as_thread)

    def diff(self, app: App[S], thread: Thread, a: At, b: At = None) -> list[Change]:
        return app.diff(thread, a, b)


class AsyncRunner(Runner):
    """Calls an app from an event loop."""

    name = "asynchronous"

    def invoke(
        self,
        app: App[S],
        input: Mapping[str, Any] | S | None,
        thread: Thread | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        return asyncio.run(app.ainvoke(input, thread, options=options, config=config))

    def resume(
        self,
        app: App[S],
        thread: Thread,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        return asyncio.run(app.aresume(thread, options=options, config=config))

    def stream(
        self,
        app: App[S],
        input: Mapping[str, Any] | S | None,
        thread: Thread | None = None,
        *,
        mode: StreamMode = "updates",
        options: ExecutionOptions | None = None,
        until: Callable[[Event], bool] = lambda event: False,
    ) -> list[Event]:
        async def read() -> list[Event]:
            seen: list[Event] = []
            events: Any = app.astream(input, thread, mode=mode, options=options)
            async for event in events:
                seen.append(event)
                if until(event):
                    await events.aclose()
                    break
            return seen

        return asyncio.run(read())

    def state(self, app: App[S], thread: Thread, at: At = None) -> Snapshot[S]:
        return asyncio.run(app.astate(thread, at))

    def history(
        self, app: App[S], thread: Thread, limit: int | None = None
    ) -> list[CheckpointMetadata]:
        async def read() -> list[CheckpointMetadata]:
            return [known async for known in app.ahistory(thread, limit)]

        return asyncio.run(read())

    def update_state(
        self, app: App[S], thread: Thread, update: Mapping[str, Any], at: At = None
    ) -> CheckpointMetadata:
        return asyncio.run(app.aupdate_state(thread, update, at))

    def fork(
        self, app: App[S], thread: Thread, at: At, as_thread: Thread | None = None
    ) -> CheckpointMetadata:
        return asyncio.run(app.afork(thread, at, as_thread))

    def diff(self, app: App[S], thread: Thread, a: At, b: At = None) -> list[Change]:
        return asyncio.run(app.adiff(thread, a, b))


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def always(answer: Any) -> Callable[[Any], Any]:
    """A node, router or predicate with the same answer to every state."""

    def answering(state: Any) -> Any:
        return answer

    return answering


def made_async(function: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The same node, async."""

    @functools.wraps(function)
    async def called(*args: Any, **named: Any) -> T:
        await asyncio.sleep(0)
        return function(*args, **named)

    return called


class Every:
    """Makes every n-th function async: all with 1, some with 2, none with 0."""

    def __init__(self, nth: int) -> None:
        self._nth = nth
        self._count = 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self._count += 1
        return made_async(function) if self._nth and self._count % self._nth == 0 else function


class CountingStore(WrappedStore):
    """A memory store that keeps every batch that was committed."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.batches: list[Batch] = []

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        self.batches.append(batch)

    @property
    def written(self) -> list[Entry]:
        return [entry for batch in self.batches for entry in batch.entries]


class SlowStore(CountingStore):
    """The same, but it says that its calls may wait, as a disk or a network would."""

    @property
    def blocking(self) -> bool:
        return True


class Recorder:
    """An observer that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


def crash_after(app: App[Any], input: Any, thread: str, *, commits: int) -> None:
    """Begin a run of sync nodes, and let the process die right after so many commits."""
    call = app.begin(Wish(input=input, thread=thread))
    if isinstance(call, Result):
        raise AssertionError("there was nothing to run")
    outcome: Any = None
    while commits:
        effect = call.effects.send(outcome)
        outcome = None
        if isinstance(effect, RunTask):
            outcome = effect.node.call(effect.state, effect.config, effect.context)
        elif isinstance(effect, Commit):
            call.host.commit(effect.batch)
            commits -= 1
        elif not isinstance(effect, Emit):
            raise AssertionError(f"not expected here: {effect}")
    call.effects.close()
