"""The app: a compiled graph with a store, ready to be called, sync or async.

The async twins do the same through the asynchronous driver; whatever may wait for a store is
called off the event loop. There is one logic: ``starting`` decides, the engine runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from milecastle.app.answering import UNANSWERED, Given
from milecastle.app.calls import Call
from milecastle.app.children import delete_with_children
from milecastle.app.clock import SystemClock
from milecastle.app.habits import refuse_attribute
from milecastle.app.keyring import Keyring
from milecastle.app.launching import Launcher, Wish
from milecastle.app.results import Result
from milecastle.app.starting import Start, start_resumed, start_with_input
from milecastle.app.streams import StreamMode, waiting_events
from milecastle.app.thread_calls import Thread, ThreadCalls
from milecastle.engine.plan import Ending
from milecastle.engine.position import fresh_position
from milecastle.errors import InvalidRequest
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.model.run import Mode
from milecastle.ports.clock import Clock
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.portable import FilePath
    from milecastle.recovery.plan import Plan
    from milecastle.recovery.workspace import Workspace

__all__ = ["App"]

S = TypeVar("S")


class App(ThreadCalls[S], Generic[S]):
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
        encryption: Keyring | None = None,
        checkpoint_dir: FilePath | None = None,
        signing_key: bytes | str | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__(
            graph, store, tenant, clock or SystemClock(), encryption, checkpoint_dir, signing_key
        )
        self._workspace = workspace
        self._interval = interval
        self._preserve = preserve
        self._observers = observers
        self._launcher = Launcher(
            graph=graph if workspace is None else _with_caches(graph, workspace),
            clock=self._clock,
            store=store,
            interval=interval,
            observers=observers,
            encryption=encryption,
            hosting=None if checkpoint_dir is None else self._files().hosting,
        )

    @property
    def interval(self) -> int:
        """How often threads are saved: every so many steps."""
        return self._interval

    @property
    def workspace(self) -> Workspace | None:
        """Where file runs and caches are kept; ``None`` if there is none."""
        return self._workspace

    def using(self, *, store: Store | None, clock: Clock, preserve: bool | None = None) -> App[S]:
        """The same graph and settings with another store and clock, for simulators."""
        return self._rebuilt(self._graph, store, clock, preserve, self._workspace)

    def with_graph(self, graph: CompiledGraph, *, save: bool = True) -> App[S]:
        """The same settings around another compiled graph; ``save=False`` stores nothing of it.

        Observers, tenant, clock and encryption stay as they are.
        """
        store, workspace = (self._store, self._workspace) if save else (None, None)
        return self._rebuilt(graph, store, self._clock, None, workspace)

    def _rebuilt(
        self,
        graph: CompiledGraph,
        store: Store | None,
        clock: Clock,
        preserve: bool | None,
        workspace: Workspace | None,
    ) -> App[S]:
        app: App[S] = App(
            graph,
            store=store,
            interval=self._interval or 1,
            preserve=self._preserve if preserve is None else preserve,
            observers=self._observers,
            tenant=self._tenant,
            clock=clock,
            encryption=self._encryption,
            checkpoint_dir=self._checkpoint_dir,
            signing_key=self._signing_key,
            workspace=workspace,
        )
        app._use_migrations(self._migrations)
        return app

    def invoke(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
        checkpoint: FilePath | None = None,
        mode: Mode | None = None,
    ) -> Result[S]:
        """Run to the end or an interrupt; a failure is raised.

        Called again with the same input on a thread whose run was cut short, it goes on from
        the last committed step. ``None`` as input is ``resume``, or with ``checkpoint`` the run
        that a portable file stands for.

        With ``mode`` it is a file run in the app's workspace: ``"incremental"`` does what is
        needed, ``"clean"`` everything, ``"resume-only"`` goes on with what failed.
        """
        wish = Wish(
            input=input, thread=thread, options=options, config=config, checkpoint=checkpoint
        )
        if mode is not None:
            from milecastle.app.file_calls import run_files

            return run_files(self, wish, mode)
        return self._finish(self.begin(wish))

    async def ainvoke(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
        checkpoint: FilePath | None = None,
        mode: Mode | None = None,
    ) -> Result[S]:
        """``invoke`` on an event loop."""
        wish = Wish(
            input=input, thread=thread, options=options, config=config, checkpoint=checkpoint
        )
        if mode is not None:
            from milecastle.app.file_calls import arun_files

            return await arun_files(self, wish, mode)
        call = await self._off_loop(self.begin, wish)
        return await self._afinish(call)

    def plan(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        mode: Mode = "incremental",
    ) -> Plan:
        """What ``invoke(..., mode=...)`` would run, what it would reuse, and why."""
        from milecastle.app.file_calls import plan_files

        return plan_files(self, Wish(input=input, thread=thread), mode)

    def run_unsaved(
        self,
        graph: CompiledGraph,
        input: Any,
        *,
        run_id: str,
        options: ExecutionOptions | None = None,
    ) -> Result[S]:
        """Run another graph with this app's settings and store nothing: for file runs."""
        app = self.with_graph(graph, save=False)
        return app._finish(app.begin(Wish(input=input, options=options, run_id=run_id)))

    async def arun_unsaved(
        self,
        graph: CompiledGraph,
        input: Any,
        *,
        run_id: str,
        options: ExecutionOptions | None = None,
    ) -> Result[S]:
        """``run_unsaved`` on an event loop."""
        app = self.with_graph(graph, save=False)
        return await app._afinish(app.begin(Wish(input=input, options=options, run_id=run_id)))

    def resume(
        self,
        thread: Thread,
        answer: Any = UNANSWERED,
        *,
        answers: Mapping[str, Any] | None = None,
        accept_changes: bool = False,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """Go on from the thread's head, in whatever process.

        ``answer`` answers the one open question; ``answers`` several, by their ids. An answer
        that does not fit is refused, and the thread stays as it was. ``accept_changes`` goes on
        with a state that does not fit the changed graph; the history says so.
        """
        given = Given(answer=answer, answers=answers)
        wish = Wish(
            thread=thread,
            options=options,
            config=config,
            given=given,
            accept_changes=accept_changes,
        )
        return self._finish(self.begin(wish))

    async def aresume(
        self,
        thread: Thread,
        answer: Any = UNANSWERED,
        *,
        answers: Mapping[str, Any] | None = None,
        accept_changes: bool = False,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """``resume`` on an event loop."""
        given = Given(answer=answer, answers=answers)
        wish = Wish(
            thread=thread,
            options=options,
            config=config,
            given=given,
            accept_changes=accept_changes,
        )
        return await self._afinish(await self._off_loop(self.begin, wish))

    def stream(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        mode: StreamMode = "updates",
        answer: Any = UNANSWERED,
        answers: Mapping[str, Any] | None = None,
        subgraphs: bool = False,
        options: ExecutionOptions | None = None,
        config: Any = None,
        checkpoint: FilePath | None = None,
    ) -> Iterator[Event]:
        """The same run as events: each node's update, each state, or everything.

        ``stream(None, thread, answer=...)`` is ``resume``, told as events. Events of subgraphs
        are left out unless ``subgraphs`` is set. Stop reading whenever you like: the run ends
        cleanly at its last commit.
        """
        wish = Wish(
            input=input,
            thread=thread,
            options=options,
            config=config,
            mode=mode,
            subgraphs=subgraphs,
            given=Given(answer=answer, answers=answers),
            checkpoint=checkpoint,
        )
        call = self.begin(wish)
        if isinstance(call, Result):
            return iter(waiting_events(call))
        return self._events(call)

    async def astream(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        mode: StreamMode = "updates",
        answer: Any = UNANSWERED,
        answers: Mapping[str, Any] | None = None,
        subgraphs: bool = False,
        options: ExecutionOptions | None = None,
        config: Any = None,
        checkpoint: FilePath | None = None,
    ) -> AsyncIterator[Event]:
        """``stream`` on an event loop."""
        from contextlib import aclosing

        from milecastle.drivers.asynchronous import Drive

        wish = Wish(
            input=input,
            thread=thread,
            options=options,
            config=config,
            mode=mode,
            subgraphs=subgraphs,
            given=Given(answer=answer, answers=answers),
            checkpoint=checkpoint,
        )
        call = await self._off_loop(self.begin, wish)
        if isinstance(call, Result):
            for event in waiting_events(call):
                yield event
            return
        drive = Drive(call.effects, call.host)
        async with aclosing(drive.events()) as events:
            async for event in events:
                yield event
        await self._off_loop(self.conclude, call, drive.result())

    def begin(self, wish: Wish) -> Call | Result[S]:
        """Decide what to run, and leave the running to a driver; then ``conclude``.

        A thread that waits for a person, asked the same, is returned as it is.
        """
        key = self._key(wish.thread) if wish.thread is not None else None
        if wish.checkpoint is not None:
            start, wish = self._files().start(wish, self._threads, key, self._tenant)
        else:
            start = self._start(wish, key)
        if start.waiting is not None:
            return self._result(start.run_id, key, start.waiting)
        return self._launcher.launch(start, wish)

    def _start(self, wish: Wish, key: ThreadKey | None) -> Start:
        input = wish.input
        if self._threads is None:
            if input is None:
                raise InvalidRequest("nothing can be resumed without a store: compile(store=...)")
            return Start(
                position=fresh_position(self._graph.schema),
                run_id=wish.run_id or self._clock.new_id(),
                journal=None,
                update=self._graph.schema.read_input(input),
            )
        if input is None:
            if key is None:
                raise InvalidRequest("to resume, say which thread: resume('my-thread')")
            return start_resumed(self._threads, key, wish.given, accept=wish.accept_changes)
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
            delete_with_children(self._store, call.key)
            if self._encryption:
                self._encryption.erase(call.key)
        return self._result(call.run_id, call.key, ending, call.given)

    def resume_from_checkpoint(
        self, path: FilePath, config: Any = None, *, thread: Thread | None = None
    ) -> Result[S]:
        """Run the node that a portable file names, and go on; ``config`` goes over the saved one.

        With a store this begins a thread, which must have no checkpoints yet.
        """
        return self.invoke(thread=thread, config=config, checkpoint=path)

    def __getattr__(self, name: str) -> Any:
        refuse_attribute(name)


def _with_caches(graph: CompiledGraph, workspace: Workspace) -> CompiledGraph:
    from milecastle.recovery.caching import with_caches

    return with_caches(graph, workspace)
