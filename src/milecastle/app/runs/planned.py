from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from milecastle.app.emitting import Publisher, feed_of, notify_rest
from milecastle.app.runs.calls import Call
from milecastle.app.runs.ownership import Driving
from milecastle.app.runs.streams import selector
from milecastle.drivers import blocking
from milecastle.drivers.committer import Committer, PartedCommitter
from milecastle.drivers.host import Host
from milecastle.engine.effects import Begin, Effect
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.run import Run
from milecastle.errors import InvalidRequest
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.ports.executor import Executors
from milecastle.ports.observer import Observer
from milecastle.ports.services import Services
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.drivers.asynchronous import Drive


class PlannedRun(Host):
    """A call's run.

    A sync call to a graph with async functions enters one event loop for the whole run. While
    it is driven, this process owns the run.
    """

    def __init__(
        self,
        call: Call,
        plan: RunPlan,
        *,
        store: Store | None,
        committer: Committer | PartedCommitter | None,
        observers: tuple[Observer, ...],
        executors: Executors,
        begin: Callable[[Begin], RunPlan],
    ) -> None:
        options, journal = call.options, plan.journal
        super().__init__(
            clock=plan.clock,
            store=store,
            committer=committer,
            observers=observers,
            executors=executors,
            wanted=None if call.mode is None else _filter(call, plan.run_id),
            cancel=options.cancel if options else None,
            timeout=plan.config.timeout,
            max_parallel=plan.config.max_parallel,
            begin=begin,
        )
        if plan.feeding and store is not None and journal is not None:
            self.publish = Publisher(feed_of(store), journal.key, journal.codec).publish
            self.told = partial(notify_rest, store, journal.key)
        self.call = call
        self.plan = plan

    @property
    def key(self) -> ThreadKey | None:
        return self.plan.journal.key if self.plan.journal else None

    def effects(self, services: Services) -> Generator[Effect, Any, Ending]:
        return Run(self.plan, services).effects()

    def finish(self) -> Ending:
        if self.plan.graph.is_async:
            import asyncio

            refuse_running_loop()
            with asyncio.Runner() as runner:
                return runner.run(self.afinish())
        with self._driving():
            events = blocking.drive(self.effects, self)
            while True:
                try:
                    next(events)
                except StopIteration as stop:
                    ending: Ending = stop.value
                    return ending

    async def afinish(self) -> Ending:
        return await self.adrive().finish()

    def hand_over(self) -> Ending:
        """Commit a run's opening for the workers; no graph function is called."""
        return blocking.hand_over(self.effects, self)

    async def ahand_over(self) -> Ending:
        from milecastle.drivers.asynchronous import Drive

        return await Drive(self.effects, self).hand_over()

    def events(self) -> Generator[Event, None, Ending]:
        if self.plan.graph.is_async:
            refuse_running_loop()
            return self._events_of_loop()
        return self._events()

    def adrive(self) -> Drive:
        from milecastle.drivers.asynchronous import Drive

        return Drive(self.effects, self, self._driving())

    def _driving(self) -> AbstractContextManager[None]:
        if self.plan.journal is None:
            return nullcontext()
        return Driving(self.plan.journal, self.store, self.call.takes_over)

    def _events(self) -> Generator[Event, None, Ending]:
        with self._driving():
            return (yield from blocking.drive(self.effects, self))

    def _events_of_loop(self) -> Generator[Event, None, Ending]:
        import asyncio

        from milecastle.drivers.asynchronous import Drive

        drive = Drive(self.effects, self)
        events = drive.events()
        with self._driving(), asyncio.Runner() as runner:
            try:
                while (event := runner.run(_next_of(events))) is not None:
                    yield event
            finally:
                runner.run(events.aclose())
        return drive.result()


def refuse_running_loop() -> None:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequest(
        "this graph has async nodes and an event loop is already running: use await ainvoke(), "
        "await aresume() or async for with astream()"
    )


async def _next_of(events: Any) -> Event | None:
    return await anext(events, None)


def _filter(call: Call, run_id: str) -> Callable[[Event], Event | None]:
    select = selector(call.mode or "updates")

    def wanted(event: Event) -> Event | None:
        if event.run_id != run_id and (event.type == "interrupt" or not call.subgraphs):
            return None  # the run that was called reports what a subgraph asks
        return select(event)

    return wanted
