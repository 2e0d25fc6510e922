"""A call: what it asks for, and the run that it became, with the driver that performs it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import msgspec.structs

from milecastle.app.emitting import Publisher, feed_of
from milecastle.app.runs.answering import NOTHING_GIVEN, Given
from milecastle.app.runs.ownership import Driving
from milecastle.app.runs.starting import DEFAULT_START, StartPolicy, plan_at, start_child
from milecastle.app.runs.streams import StreamMode, selector
from milecastle.app.threads.children import child_key
from milecastle.app.threads.log import Threads
from milecastle.compute.executor_choice import ExecutorChoice
from milecastle.drivers import blocking
from milecastle.drivers.host import Host
from milecastle.drivers.local import LocalExecutors
from milecastle.drivers.observing import switched_on
from milecastle.engine.effects import Begin, Effect
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.position import fresh_position
from milecastle.engine.renaming import task_renamed
from milecastle.engine.run import Run
from milecastle.errors import InvalidRequest
from milecastle.graph.comparison import Renames
from milecastle.graph.structure import CompiledGraph
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.ports.clock import Clock
from milecastle.ports.executor import Executors
from milecastle.ports.observer import Observer
from milecastle.ports.services import Services
from milecastle.ports.store import Opened, Store
from milecastle.support.migration_hints import refuse_config

if TYPE_CHECKING:
    from milecastle.drivers.asynchronous import Drive

__all__ = ["Call", "Launcher", "PlannedRun", "calls_for", "only_file"]

T = TypeVar("T")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of ``invoke``, ``stream`` or ``resume`` asks for.

    ``mode`` is that of a stream, or ``None`` without a reader. ``run_id`` names a run that is not
    saved; saved runs have their own. ``known`` is what was read of the thread already. ``is_own``:
    Milecastle itself starts the thread, under a name of ``own_key``.
    """

    input: Any = None
    thread: Any = None
    options: ExecutionOptions | None = None
    config: Any = None
    mode: StreamMode | None = None
    subgraphs: bool = False
    given: Given = NOTHING_GIVEN
    policy: StartPolicy = DEFAULT_START
    accept_changes: bool = False
    file: Any = None
    run_id: str | None = None
    known: Opened | None = None
    is_own: bool = False

    def __post_init__(self) -> None:
        if self.config is not None:
            refuse_config(self.config)
        if self.options is not None and not isinstance(
            cast("object", self.options), ExecutionOptions
        ):
            raise InvalidRequest(
                f"options= takes ExecutionOptions(max_steps=...), not {type(self.options).__name__}"
            )


def calls_for(inputs: Mapping[str, Any], policy: StartPolicy) -> list[Call]:
    """One call for each thread and its input."""
    return [Call(input=input, thread=thread, policy=policy) for thread, input in inputs.items()]


def only_file(file: Any, checkpoint: Any) -> Any:
    """The portable file that a call names, under either name."""
    if file is not None and checkpoint is not None:
        raise InvalidRequest("give the portable file once: as file= or as checkpoint=, not both")
    return checkpoint if file is None else file


class PlannedRun(msgspec.Struct, frozen=True):
    """A call, the plan of its run, and the surroundings in which a driver performs it.

    A sync call of a graph that has async functions enters one event loop for the whole run. While
    it is driven, this process owns the run.
    """

    call: Call
    plan: RunPlan
    host: Host

    @property
    def key(self) -> ThreadKey | None:
        """The thread that is run; ``None`` if it is not saved."""
        return self.plan.journal.key if self.plan.journal else None

    def effects(self, services: Services) -> Generator[Effect, Any, Ending]:
        """The run, for a driver with these services."""
        return Run(self.plan, services).effects()

    def finish(self) -> Ending:
        """Run until it stops."""
        if self.plan.graph.is_async:
            refuse_running_loop()
            return _in_new_loop(self.afinish())
        with self._driving():
            return _exhaust(blocking.drive(self.effects, self.host))

    async def afinish(self) -> Ending:
        """Run until it stops, on the event loop."""
        return await self.adrive().finish()

    def hand_over(self) -> Ending:
        """Commit the opening of a run for the workers; no function of the graph is called."""
        return _exhaust(blocking.drive(self.effects, self.host))

    async def ahand_over(self) -> Ending:
        """``hand_over`` on an event loop."""
        from milecastle.drivers.asynchronous import Drive

        return await Drive(self.effects, self.host).finish()

    def events(self) -> Generator[Event, None, Ending]:
        """Run, and yield events as they happen."""
        if self.plan.graph.is_async:
            refuse_running_loop()
            return self._events_of_loop()
        return self._events()

    def adrive(self) -> Drive:
        """The driver of the run on an event loop."""
        from milecastle.drivers.asynchronous import Drive

        return Drive(self.effects, self.host, self._driving())

    def _driving(self) -> AbstractContextManager[None]:
        if self.plan.journal is None:
            return nullcontext()
        return Driving(self.plan.journal, self.host.store, self.call.policy.take_over)

    def _events(self) -> Generator[Event, None, Ending]:
        with self._driving():
            return (yield from blocking.drive(self.effects, self.host))

    def _events_of_loop(self) -> Generator[Event, None, Ending]:
        import asyncio

        from milecastle.drivers.asynchronous import Drive

        drive = Drive(self.effects, self.host)
        events = drive.events()
        with self._driving(), asyncio.Runner() as runner:
            try:
                while (event := runner.run(_next_of(events))) is not None:
                    yield event
            finally:
                runner.run(events.aclose())
        return drive.result()


def refuse_running_loop() -> None:
    """A sync call of an async graph cannot be made from inside a loop."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequest(
        "this graph has async nodes and an event loop is already running: use await ainvoke(), "
        "await aresume() or async for with astream()"
    )


def _in_new_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    import asyncio

    with asyncio.Runner() as runner:
        return runner.run(coroutine)


async def _next_of(events: Any) -> Event | None:
    return await anext(events, None)


def _exhaust(events: Generator[Event, None, Ending]) -> Ending:
    while True:
        try:
            next(events)
        except StopIteration as stop:
            ending: Ending = stop.value
            return ending


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """Launches the calls of one app.

    ``leaving`` creates the writer of portable files, if they are wanted.
    """

    graph: CompiledGraph
    clock: Clock
    store: Store | None
    threads: Threads | None
    interval: int
    observers: tuple[Observer, ...]
    executors: Executors
    leaving: Callable[[Any], Callable[..., None]] | None = None

    def launch(self, plan: RunPlan, call: Call) -> PlannedRun:
        """A run that a driver can perform: the plan with what the call and the app say."""
        config = self.graph.config.overridden(call.options)
        publisher = self._publisher(plan, call)
        observers, executors = self.observers, self.executors
        if observers and (on := switched_on(observers)) != observers:
            observers = on
            if isinstance(executors, LocalExecutors | ExecutorChoice):
                executors = executors.seen_by(on)
        host = Host(
            clock=self.clock,
            store=self.store,
            observers=observers,
            executors=executors,
            wanted=_filter(call, plan.run_id),
            cancel=call.options.cancel if call.options else None,
            timeout=config.timeout,
            max_parallel=config.max_parallel,
            begin=self._begin_child,
            publish=publisher.publish if publisher else None,
        )
        plan = msgspec.structs.replace(
            plan,
            graph=self.graph,
            config=config,
            options=call.options,
            interval=self.interval,
            node_config=call.config,
            has_readers=bool(observers) or call.mode is not None,
            feeding=publisher is not None,
            streaming=call.mode,
            accept_changes=call.accept_changes,
            leave=None if self.leaving is None else self.leaving(call.config),
        )
        return PlannedRun(call, plan, host)

    def _publisher(self, plan: RunPlan, call: Call) -> Publisher | None:
        """What publishes the emitted values of a run, if a worker runs it."""
        if self.store is None or plan.journal is None or not call.policy.is_claimed:
            return None
        return Publisher(feed_of(self.store), plan.journal.key, plan.journal.codec)

    def _begin_child(self, effect: Begin) -> RunPlan:
        """The plan of the run of a subgraph: its own thread, under that of its parent."""
        parent = effect.parent
        return msgspec.structs.replace(
            self._start_child(effect),
            config=effect.subgraph.graph.config.overridden(parent.options),
            options=parent.options,
            interval=effect.subgraph.interval,
            node_config=parent.node_config,
            has_readers=parent.has_readers,
            feeding=parent.feeding,
            streaming=parent.streaming,
            accept_changes=parent.accept_changes,
            root=parent.root or parent.graph.fingerprint,
            path=(*parent.path, effect.node),
            parent=(parent.run_id, effect.task),
        )

    def _start_child(self, effect: Begin) -> RunPlan:
        graph, journal = effect.subgraph.graph, effect.parent.journal
        update = graph.schema.start_input(effect.input)
        if self.threads is None or journal is None:
            position, run_id = fresh_position(graph.schema), self.clock.new_id()
            return plan_at(graph, self.clock, position, run_id, update=update)
        key = self._child_key(self.threads.store, journal.key, effect)
        accept = effect.parent.accept_changes
        return start_child(self.threads.below(graph), key, update, effect.answers, accept=accept)

    def _child_key(self, store: Store, parent: ThreadKey, effect: Begin) -> ThreadKey:
        """The thread of a subgraph; one that began under a former name of its node keeps it."""
        key = child_key(parent, effect.place, effect.task)
        former = effect.parent.graph.nodes[effect.node].policy.renamed_from
        if not former or store.head(key) is not None:
            return key
        for name in former:
            task = task_renamed(effect.task, Renames(nodes={effect.node: name}))
            found = child_key(parent, effect.place, task)
            if store.head(found) is not None:
                return found
        return key


def _filter(call: Call, run_id: str) -> Callable[[Event], Event | None] | None:
    """The filter of a stream: events of subgraphs only if requested."""
    if call.mode is None:
        return None
    select = selector(call.mode)

    def wanted(event: Event) -> Event | None:
        if event.run_id != run_id and (event.type == "interrupt" or not call.subgraphs):
            return None  # the run that was called reports what a subgraph asks
        return select(event)

    return wanted
