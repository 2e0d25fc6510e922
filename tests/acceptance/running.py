"""The two ways to call an app, behind one face, so that every scenario runs through both."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar

from milecastle import App, Event, Result, Snapshot, ThreadKey
from milecastle.app.runs.calls import Call
from milecastle.app.runs.planned import PlannedRun
from milecastle.drivers.host import HostServices
from milecastle.drivers.node_caller import NodeCaller, perform
from milecastle.engine.effects import Commit, Emit
from milecastle.model.checkpoint import Entry
from milecastle.model.task import RunTask
from milecastle.ports.store import Batch
from milecastle.records import Change, CheckpointMetadata
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

Thread = str | ThreadKey
At = int | str | None


class Runner:
    """NodeCaller an app from plain code, or from an event loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._on_loop = name == "asynchronous"

    def call(
        self,
        call: Callable[P, T],
        twin: Callable[P, Coroutine[Any, Any, T]],
        *given: P.args,
        **named: P.kwargs,
    ) -> T:
        """Call a method of an app, or its async twin."""
        return asyncio.run(twin(*given, **named)) if self._on_loop else call(*given, **named)

    def invoke(
        self, app: App[S], input: Any, thread: Thread | None = None, **named: Any
    ) -> Result[S]:
        return self.call(app.invoke, app.ainvoke, input, thread, **named)

    def resume(self, app: App[S], thread: Thread, **named: Any) -> Result[S]:
        return self.call(app.resume, app.aresume, thread, **named)

    def stream(
        self,
        app: App[Any],
        input: Any,
        thread: Thread | None = None,
        *,
        until: Callable[[Event], bool] = lambda event: False,
        **named: Any,
    ) -> list[Event]:
        """The events, up to and with the first for which ``until`` holds; then it is closed."""
        seen: list[Event] = []
        if self._on_loop:
            asyncio.run(_read(app.astream(input, thread, **named), until, seen))
            return seen
        events: Any = app.stream(input, thread, **named)
        for event in events:
            seen.append(event)
            if until(event):
                events.close()
                break
        return seen

    def state(self, app: App[S], thread: Thread, at: At = None) -> Snapshot[S]:
        return self.call(app.state, app.astate, thread, at)

    def history(
        self, app: App[Any], thread: Thread, limit: int | None = None
    ) -> list[CheckpointMetadata]:
        if not self._on_loop:
            return list(app.history(thread, limit))

        async def read() -> list[CheckpointMetadata]:
            return [known async for known in app.ahistory(thread, limit)]

        return asyncio.run(read())

    def update_state(
        self, app: App[Any], thread: Thread, update: Mapping[str, Any], at: At = None
    ) -> CheckpointMetadata:
        return self.call(app.update_state, app.aupdate_state, thread, update, at)

    def fork(
        self, app: App[Any], thread: Thread, at: At, as_thread: Thread | None = None
    ) -> CheckpointMetadata:
        return self.call(app.fork, app.afork, thread, at, as_thread)

    def diff(self, app: App[Any], thread: Thread, a: At, b: At = None) -> list[Change]:
        return self.call(app.diff, app.adiff, thread, a, b)


async def _read(events: Any, until: Callable[[Event], bool], seen: list[Event]) -> None:
    async for event in events:
        seen.append(event)
        if until(event):
            await events.aclose()
            break


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


def call_node(planned: PlannedRun, task: RunTask) -> Any:
    """What the node of a task returns."""
    calls = NodeCaller((planned.plan.graph,), planned.ports, perform)
    try:
        return calls.call(task)
    finally:
        calls.close()


def crash_after(app: App[Any], input: Any, thread: str, *, commits: int) -> None:
    """Begin a run of sync nodes, and let the process die right after so many commits."""
    planned = app.runner.begin(Call(input=input, thread=thread))
    if isinstance(planned, Result):
        raise AssertionError("there was nothing to run")
    effects = planned.effects(HostServices(planned))
    outcome: Any = None
    while commits:
        effect = effects.send(outcome)
        outcome = None
        if isinstance(effect, RunTask):
            outcome = call_node(planned, effect)
        elif isinstance(effect, Commit):
            planned.commit(effect.batch)
            commits -= 1
        elif not isinstance(effect, Emit):
            raise AssertionError(f"not expected here: {effect}")
    effects.close()
