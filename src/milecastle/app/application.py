"""The app: a compiled graph with a store, ready to be called, sync or async.

The async twins do the same through the asynchronous driver; whatever may wait for a store is
called off the event loop. There is one logic: ``starting`` decides, the engine runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec.structs

from milecastle.app.calls import Call, take_page
from milecastle.app.clock import SystemClock
from milecastle.app.difference import Change, difference
from milecastle.app.habits import refuse_attribute, refuse_thread
from milecastle.app.results import Result, Snapshot
from milecastle.app.starting import Start, start_resumed, start_with_input
from milecastle.app.streams import StreamMode, selector, waiting_events
from milecastle.app.threads import At, Threads
from milecastle.drivers.host import Host
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.position import fresh_position
from milecastle.engine.run import Run
from milecastle.errors import InvalidRequest
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.checkpoint import CheckpointMetadata, Entry, to_datetime
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.ports.clock import Clock
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store

__all__ = ["App"]

S = TypeVar("S")
T = TypeVar("T")

Thread = str | ThreadKey


class App(Generic[S]):
    """A compiled graph, ready to run. Immutable and thread-safe; made by ``StateGraph.compile``."""

    def __init__(
        self,
        graph: CompiledGraph,
        *,
        store: Store | None = None,
        interval: int = 1,
        preserve: bool = True,
        observers: tuple[Observer, ...] = (),
        tenant: str = "default",
        clock: Clock | None = None,
    ) -> None:
        self._graph = graph
        self._store = store
        self._interval = interval
        self._preserve = preserve
        self._observers = observers
        self._tenant = tenant
        self._clock = clock or SystemClock()
        self._threads = Threads(graph, store, self._clock) if store else None

    @property
    def graph(self) -> CompiledGraph:
        """The graph that this app runs."""
        return self._graph

    @property
    def store(self) -> Store | None:
        """Where threads are kept; ``None`` if nothing is saved."""
        return self._store

    @property
    def fingerprint(self) -> str:
        """The hash of the graph's structure: equal in every process and on every Python."""
        return self._graph.fingerprint

    def using(self, *, store: Store | None, clock: Clock, preserve: bool | None = None) -> App[S]:
        """The same graph and settings with another store and clock, for simulators."""
        return App(
            self._graph,
            store=store,
            interval=self._interval or 1,
            preserve=self._preserve if preserve is None else preserve,
            observers=self._observers,
            tenant=self._tenant,
            clock=clock,
        )

    def invoke(
        self,
        input: S | Mapping[str, Any] | None,
        thread: Thread | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """Run to the end or an interrupt; a failure is raised.

        Called again with the same input on a thread whose run was cut short, it goes on from
        the last committed step. ``None`` as input is ``resume``.
        """
        return self._finish(self.begin(input, thread, options, config, None))

    async def ainvoke(
        self,
        input: S | Mapping[str, Any] | None,
        thread: Thread | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """``invoke`` on an event loop."""
        call = await self._off_loop(self.begin, input, thread, options, config, None)
        return await self._afinish(call)

    def resume(
        self,
        thread: Thread,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """Go on from the thread's head, in whatever process."""
        return self._finish(self.begin(None, thread, options, config, None))

    async def aresume(
        self,
        thread: Thread,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """``resume`` on an event loop."""
        return await self.ainvoke(None, thread, options=options, config=config)

    def stream(
        self,
        input: S | Mapping[str, Any] | None,
        thread: Thread | None = None,
        *,
        mode: StreamMode = "updates",
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Iterator[Event]:
        """The same run as events: each node's update, each state, or everything.

        Stop reading whenever you like: the run ends cleanly at its last commit.
        """
        call = self.begin(input, thread, options, config, mode)
        if isinstance(call, Result):
            return iter(waiting_events(call))
        return self._events(call)

    async def astream(
        self,
        input: S | Mapping[str, Any] | None,
        thread: Thread | None = None,
        *,
        mode: StreamMode = "updates",
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> AsyncIterator[Event]:
        """``stream`` on an event loop."""
        from contextlib import aclosing

        from milecastle.drivers.asynchronous import Drive

        call = await self._off_loop(self.begin, input, thread, options, config, mode)
        if isinstance(call, Result):
            for event in waiting_events(call):
                yield event
            return
        drive = Drive(call.effects, call.host)
        async with aclosing(drive.events()) as events:
            async for event in events:
                yield event
        await self._off_loop(self.conclude, call, drive.result())

    def begin(
        self,
        input: S | Mapping[str, Any] | None,
        thread: Thread | None = None,
        options: ExecutionOptions | None = None,
        config: Any = None,
        mode: StreamMode | None = None,
    ) -> Call | Result[S]:
        """Decide what to run, and leave the running to a driver; then ``conclude``.

        A thread that waits for a person, asked the same, is returned as it is.
        """
        execution = self._graph.config.overridden(options)
        key = self._key(thread) if thread is not None else None
        start = self._start(input, key)
        if start.waiting is not None:
            return self._waiting(start, start.waiting, key)
        wanted = None if mode is None else selector(mode)
        plan = RunPlan(
            graph=self._graph,
            config=execution,
            run_id=start.run_id,
            position=start.position,
            clock=self._clock,
            journal=start.journal,
            interval=self._interval,
            update=start.update,
            opening=start.opening,
            note=start.note,
            node_config=config,
            telling=bool(self._observers) or wanted is not None,
        )
        host = Host(
            store=self._store,
            observers=self._observers,
            wanted=wanted,
            cancel=options.cancel if options else None,
            timeout=execution.timeout,
        )
        return Call(
            run_id=start.run_id,
            key=start.journal.key if start.journal else None,
            effects=Run(plan).effects(),
            host=host,
            is_async=self._graph.is_async,
        )

    def _start(self, input: S | Mapping[str, Any] | None, key: ThreadKey | None) -> Start:
        if self._threads is None:
            if input is None:
                raise InvalidRequest("nothing can be resumed without a store: compile(store=...)")
            return Start(
                position=fresh_position(self._graph.schema),
                run_id=self._clock.new_id(),
                journal=None,
                update=self._graph.schema.read_input(input),
            )
        if input is None:
            if key is None:
                raise InvalidRequest("to resume, say which thread: resume('my-thread')")
            return start_resumed(self._threads, key)
        if key is None:
            key = ThreadKey(self._tenant, self._clock.new_id())
        return start_with_input(self._threads, key, self._graph.schema.read_input(input))

    def _finish(self, call: Call | Result[S]) -> Result[S]:
        return call if isinstance(call, Result) else self.conclude(call, call.finish())

    async def _afinish(self, call: Call | Result[S]) -> Result[S]:
        if isinstance(call, Result):
            return call
        return await self._off_loop(self.conclude, call, await call.afinish())

    def _events(self, call: Call) -> Iterator[Event]:
        ending = yield from call.events()
        self.conclude(call, ending)

    def conclude(self, call: Call, ending: Ending) -> Result[S]:
        """What the caller gets of a call that a driver brought to rest."""
        if not self._preserve and ending.status == "completed" and self._store and call.key:
            self._store.delete(call.key)
        return Result(
            state=self._graph.schema.present(ending.values),
            status=ending.status,
            run_id=call.run_id,
            thread=call.key,
            nodes=ending.nodes,
            next=ending.next,
            step=ending.step,
            timestamp=to_datetime(ending.time),
        )

    def _waiting(self, start: Start, entry: Entry, key: ThreadKey | None) -> Result[S]:
        return Result(
            state=self._graph.schema.present(start.position.values),
            status="interrupted",
            run_id=start.run_id,
            thread=key,
            nodes=entry.nodes,
            next=entry.next,
            step=entry.step,
            timestamp=to_datetime(entry.created_at),
        )

    def state(self, thread: Thread, at: At = None) -> Snapshot[S]:
        """The state of a thread at its head, or at a checkpoint given by seq or id."""
        threads, key = self._stored(thread)
        position, entry = threads.existing(key, at)
        known = CheckpointMetadata.of(key, entry)
        return Snapshot(
            **msgspec.structs.asdict(known),
            state=self._graph.schema.present(position.values),
            status=threads.status(key, entry),
            metadata=threads.record(key, entry).metadata,
        )

    async def astate(self, thread: Thread, at: At = None) -> Snapshot[S]:
        """``state`` on an event loop."""
        return await self._off_loop(self.state, thread, at)

    def history(self, thread: Thread, limit: int | None = None) -> Iterator[CheckpointMetadata]:
        """The thread's checkpoints, newest first. No state is decoded."""
        threads, key = self._stored(thread)
        return threads.history(key, limit)

    async def ahistory(
        self, thread: Thread, limit: int | None = None
    ) -> AsyncIterator[CheckpointMetadata]:
        """``history`` on an event loop."""
        found = self.history(thread, limit)
        page = await self._off_loop(take_page, found)
        while page:
            for known in page:
                yield known
            page = await self._off_loop(take_page, found)

    def update_state(
        self, thread: Thread, update: Mapping[str, Any], at: At = None
    ) -> CheckpointMetadata:
        """Append a checkpoint with an update on top of the head, or branching off an older one.

        What runs next stays as it was there.
        """
        threads, key = self._stored(thread)
        return threads.update(key, update, at)

    async def aupdate_state(
        self, thread: Thread, update: Mapping[str, Any], at: At = None
    ) -> CheckpointMetadata:
        """``update_state`` on an event loop."""
        return await self._off_loop(self.update_state, thread, update, at)

    def fork(self, thread: Thread, at: At, as_thread: Thread | None = None) -> CheckpointMetadata:
        """Go back to a checkpoint: the thread's head is then a branch from there.

        With ``as_thread`` the branch is a thread of its own and this one stays as it is.
        """
        threads, key = self._stored(thread)
        return threads.fork(key, at, None if as_thread is None else self._key(as_thread))

    async def afork(
        self, thread: Thread, at: At, as_thread: Thread | None = None
    ) -> CheckpointMetadata:
        """``fork`` on an event loop."""
        return await self._off_loop(self.fork, thread, at, as_thread)

    def diff(self, thread: Thread, a: At, b: At = None) -> list[Change]:
        """What is different between two checkpoints of a thread, by path."""
        threads, key = self._stored(thread)
        return difference(threads.existing(key, a)[0].values, threads.existing(key, b)[0].values)

    async def adiff(self, thread: Thread, a: At, b: At = None) -> list[Change]:
        """``diff`` on an event loop."""
        return await self._off_loop(self.diff, thread, a, b)

    def draw(self, form: str = "mermaid") -> str:
        """The graph as ``"mermaid"``, ``"svg"`` or ``"text"``, without any network."""
        from milecastle.graph.draw import draw_mermaid, draw_svg, draw_text

        drawers = {"mermaid": draw_mermaid, "svg": draw_svg, "text": draw_text}
        if form not in drawers:
            raise InvalidRequest(f"there is no drawing {form!r}; use 'mermaid', 'svg' or 'text'")
        return drawers[form](self._graph.manifest, title=self._graph.name)

    def _repr_svg_(self) -> str:
        return self.draw("svg")

    def _repr_html_(self) -> str:
        return self.draw("svg")

    def __getattr__(self, name: str) -> Any:
        refuse_attribute(name)

    def _key(self, thread: Thread) -> ThreadKey:
        if isinstance(thread, ThreadKey):
            return thread
        return ThreadKey(self._tenant, thread) if type(thread) is str else refuse_thread(thread)

    def _stored(self, thread: Thread) -> tuple[Threads, ThreadKey]:
        if self._threads is None:
            raise InvalidRequest("this app has no store, so it has no threads: compile(store=...)")
        return self._threads, self._key(thread)

    async def _off_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that may wait for the store."""
        if self._store is None or not self._store.blocking:
            return function(*args)
        import asyncio

        return await asyncio.to_thread(function, *args)
