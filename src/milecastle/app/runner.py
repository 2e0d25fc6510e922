"""Turn an app's calls into runs: its settings, its threads, its portable files.

``begin`` plans a run, a driver performs it, ``conclude`` makes the result. The command line
and the simulator drive an app's calls by these three steps. Whatever may wait for a store is
called off the event loop.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import msgspec.structs

from milecastle.app.deliveries import (
    delivery_graph,
    delivery_key,
    delivery_tag,
    fresh_delivery,
)
from milecastle.app.encryption.keyring import Keyring
from milecastle.app.results import Result, log_reuse
from milecastle.app.runs.answering import NOTHING_GIVEN, refuse_refused
from milecastle.app.runs.calls import Call
from milecastle.app.runs.planned import PlannedRun
from milecastle.app.runs.spawning import child_calls, refuse_taken
from milecastle.app.runs.starting import (
    MakePlan,
    Start,
    begin_child,
    enqueue,
    rest_at,
    settle_thread,
)
from milecastle.app.runs.streams import (
    AsyncEventStream,
    EventStream,
    StreamMode,
    StreamParts,
    resting_events,
)
from milecastle.app.runs.submission import (
    Handle,
    awaiting,
    has_stopped,
    joined_store,
    lane_of,
    require_shared,
    when_stopped,
)
from milecastle.app.threads.log import Migration, Threads
from milecastle.app.threads.tagging import added_tags, require_tags
from milecastle.app.upkeep.removing import remove_thread
from milecastle.codec.answers import read_config
from milecastle.compute.executor_choice import ExecutorChoice
from milecastle.drivers.committer import committer_of
from milecastle.drivers.local import LocalExecutors
from milecastle.drivers.observing import Observers, switched_on
from milecastle.engine.assignment import NOW, Assignment
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.position import fresh_position
from milecastle.engine.status import thread_info, waits_at
from milecastle.engine.waiting import open_interrupts
from milecastle.errors import Conflict, InvalidRequest, RunInProgress
from milecastle.graph.structure import UNDECLARED_CONFIG, CompiledGraph
from milecastle.model.checkpoint import to_datetime
from milecastle.model.children import PARENT
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey, own_name, refuse_own, refuse_reserved, refuse_subgraph
from milecastle.model.notices import Notice
from milecastle.model.policies import ExecutionOptions, Retry
from milecastle.model.run import RunStatus
from milecastle.ports.clock import Clock
from milecastle.ports.executor import Executors
from milecastle.ports.files import StoredFiles, require_files
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store
from milecastle.ports.task import NewChild
from milecastle.support.migration_hints import refuse_thread
from milecastle.support.printable import quoted

if TYPE_CHECKING:
    from milecastle.app.memory import AppMemory, Memory
    from milecastle.app.portable.files import FilePath, PortableFiles
    from milecastle.builds.cache import SharedCache
    from milecastle.builds.workspace import Workspace

S = TypeVar("S")
T = TypeVar("T")

Thread = str | ThreadKey


_TOGETHER = 200
"""How many inputs are submitted at a time."""

_NOTIFIED = 100
"""Of how many open questions of a run hooks are notified at a time."""

_LOOKS = 20
"""How often a call that hands a run over looks at a thread that others change meanwhile."""

_LONGEST_DELAY = 100 * 366 * 86_400
"""A hundred years, in seconds: a time that every store can hold."""

_HIGHEST = 100
"""The highest priority; the lowest is its negative. Claims look at each that a tenant uses."""


class AppSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``compile``'s arguments. ``migrations`` are shared by the apps made from one another.

    ``place`` is where the store is, equal for stores that are one; ``None`` if that is not known.
    """

    clock: Clock
    store: Store | None = None
    place: tuple[str, str] | None = None
    interval: int = 1
    preserve: bool = True
    observers: tuple[Observer, ...] = ()
    tenant: str = "default"
    encryption: Keyring | None = None
    checkpoint_dir: FilePath | None = None
    signing_key: bytes | str | None = None
    workspace: Workspace | None = None
    shared_cache: SharedCache | None = None
    retry_runs: Retry | None = None
    memory: Memory | None = None
    migrations: dict[str, Migration] = msgspec.field(default_factory=dict[str, Migration])


class Runner(Generic[S]):
    def __init__(self, graph: CompiledGraph, settings: AppSettings) -> None:
        refuse_reserved(settings.tenant)
        self.graph = graph
        self.settings = settings
        store, clock = settings.store, settings.clock
        self.threads = Threads(graph, store, clock, settings.encryption) if store else None
        if self.threads is not None:
            self.threads.migrations = settings.migrations
            if graph.hooks:
                _require_lasting(settings)
                self.threads.notify = self._notify
        self._graph = graph = _with_caches(graph, settings)
        local = LocalExecutors((graph,), settings.observers)
        self.executors: Executors = ExecutorChoice(local, graph) if graph.is_placed else local
        self._leave = None if settings.checkpoint_dir is None else self.files().leave
        self._committer = committer_of(store) if store else None
        self._begin_child = partial(begin_child, self.threads, clock)
        self.peers: dict[str, Runner[Any]] = {}

    def _notify(self, key: ThreadKey, notice: Notice) -> None:
        questions = [""]
        if notice.event == "question":
            questions = self._open_questions(key)[:_NOTIFIED]
        tags = (
            () if require_shared(self.settings.store).tags is None else (delivery_tag(key.thread),)
        )
        for hook in self.graph.hooks:
            if notice.event not in hook.events:
                continue
            calls = [
                Call(
                    input=fresh_delivery(key.thread, notice, question),
                    thread=delivery_key(key.tenant, hook, notice, question),
                    if_exists="keep",
                    is_own=True,
                    tags=tags,
                )
                for question in questions
            ]
            runner = self.delivering(delivery_graph(hook))
            if len(calls) == 1:
                runner.submit(calls[0], priority=0)
            elif calls:
                runner.submit_all(calls, 0.0, 0)

    def delivering(self, graph: CompiledGraph) -> Runner[Any]:
        return Runner(
            graph,
            msgspec.structs.replace(
                self.settings,
                interval=1,
                observers=(),
                checkpoint_dir=None,
                workspace=None,
                retry_runs=None,
                memory=None,
                migrations={},
            ),
        )

    def running(self, thread: Thread) -> Runner[Any]:
        delivery = self.key(thread).thread.rpartition("@")[0]
        for hook in self.graph.hooks:
            if delivery == own_name("delivery", hook.id):
                return self.delivering(delivery_graph(hook))
        return self

    def _open_questions(self, key: ThreadKey) -> list[str]:
        threads, _ = self.stored(key)
        position, _ = threads.existing(key)
        return [one.id for one in open_interrupts(position.reserved, position.place) if one.asks]

    def stored_files(self) -> StoredFiles:
        settings = self.settings
        sealed = settings.encryption is not None
        storage = settings.store.file_storage if settings.store else None
        return require_files(storage).files(settings.tenant, sealed=sealed)

    @property
    def shared_cache(self) -> SharedCache | None:
        return self.settings.shared_cache

    def rebuilt(self, graph: CompiledGraph | None = None, **changed: Any) -> Runner[S]:
        settings = msgspec.structs.replace(self.settings, **changed)
        return Runner(graph or self.graph, settings)

    def unsaved(self, graph: CompiledGraph) -> Runner[S]:
        return self.rebuilt(graph, store=None, workspace=None, interval=1)

    def run_unsaved(
        self, graph: CompiledGraph, input: Any, run_id: str, options: ExecutionOptions | None
    ) -> Result[S]:
        """Run another graph with these settings and store nothing: for file runs."""
        return self.unsaved(graph).invoke(Call(input=input, options=options, run_id=run_id))

    async def arun_unsaved(
        self, graph: CompiledGraph, input: Any, run_id: str, options: ExecutionOptions | None
    ) -> Result[S]:
        call = Call(input=input, options=options, run_id=run_id)
        return await self.unsaved(graph).ainvoke(call)

    def invoke(self, call: Call) -> Result[S]:
        planned = self.begin(call)
        return planned if isinstance(planned, Result) else self.conclude(planned, planned.finish())

    async def ainvoke(self, call: Call) -> Result[S]:
        planned = await self.off_loop(self.begin, call)
        return planned if isinstance(planned, Result) else await self.afinish(planned)

    async def afinish(self, planned: PlannedRun) -> Result[S]:
        ending = await planned.afinish()
        if self.settings.preserve:
            return self.conclude(planned, ending)
        return await self.off_loop(self.conclude, planned, ending)

    @property
    def lane(self) -> str:
        return lane_of(self.graph.name, self.graph.fingerprint)

    def submit(self, call: Call, delay: float = 0.0, priority: int | None = None) -> Handle[S]:
        """Commit a run's start, and leave it to the workers.

        Without a ``priority`` the thread keeps the one it has.
        """
        call = self._handed(call, delay, priority)
        for _ in range(1, _LOOKS):
            try:
                return self._submit(call)
            except Conflict as error:  # others may have handed it over meanwhile
                if _is_final(error, call):
                    raise
        return self._submit(call)

    def submit_within(self, connection: Any, call: Call, delay: float, priority: int) -> Handle[S]:
        """``submit`` in the caller's transaction: nothing is written by another connection."""
        if call.if_exists in ("queue", "cancel") or call.instead_of is not None:
            raise InvalidRequest(
                "connection= starts a run on a thread that is free: what if_busy='queue', 'cancel' "
                "and instead_of= do with another run is not part of the caller's transaction"
            )
        store, encryption = require_shared(self.settings.store), self.settings.encryption
        if call.thread is None:
            call = msgspec.structs.replace(call, thread=self.settings.clock.new_id())
        key = self._addressed(call)
        joined = joined_store(store, connection, key)
        runner = self if encryption is None else self.rebuilt(encryption=encryption.reading())
        call = runner._handed(call, delay, priority)
        if _looks_first(call) and (found := runner._found(call)):
            return found
        planned = runner.begin(call)
        if isinstance(planned, Result):
            return self._handle(planned.thread, planned.run_id, planned.status, reused=True)
        planned.commit_by(joined.commit)
        return self._handed_over(planned, planned.hand_over())

    def create_key(self, thread: Thread) -> None:
        threads, key = self.stored(thread)
        if self.settings.encryption is not None and threads.store.head(key) is None:
            self.settings.encryption.sealer(key, new=True)

    def _submit(self, call: Call) -> Handle[S]:
        if _looks_first(call) and (found := self._found(call)):
            return found
        planned = self.begin(call)
        if isinstance(planned, Result):
            return self._handle(planned.thread, planned.run_id, planned.status, reused=True)
        return self._handed_over(planned, planned.hand_over())

    async def asubmit(
        self, call: Call, delay: float = 0.0, priority: int | None = None
    ) -> Handle[S]:
        if priority is None:
            call = await self.off_loop(self._handed, call, delay, priority)
        else:
            call = self._handed(call, delay, priority)
        for _ in range(1, _LOOKS):
            try:
                return await self._asubmit(call)
            except Conflict as error:  # others may have handed it over meanwhile
                if _is_final(error, call):
                    raise
        return await self._asubmit(call)

    async def _asubmit(self, call: Call) -> Handle[S]:
        if _looks_first(call) and (found := await self.off_loop(self._found, call)):
            return found
        planned = await self.off_loop(self.begin, call)
        if isinstance(planned, Result):
            return self._handle(planned.thread, planned.run_id, planned.status, reused=True)
        return self._handed_over(planned, await planned.ahand_over())

    def submit_all(self, calls: Sequence[Call], delay: float, priority: int) -> list[Handle[S]]:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor
        from contextvars import copy_context

        with ThreadPoolExecutor(1) as pool:  # the caller may be on a loop
            submitting = self.asubmit_all(calls, delay, priority)
            return pool.submit(copy_context().run, asyncio.run, submitting).result()

    async def asubmit_all(
        self, calls: Sequence[Call], delay: float, priority: int
    ) -> list[Handle[S]]:
        """Submit all, many per commit. The first error is raised after the others are done."""
        import asyncio

        handles: list[Handle[S]] = []
        errors: list[BaseException] = []
        for first in range(0, len(calls), _TOGETHER):
            some = [
                self.asubmit(call, delay, priority) for call in calls[first : first + _TOGETHER]
            ]
            for found in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(found, BaseException):
                    errors.append(found)
                else:
                    handles.append(found)
        if errors:
            errors[0].add_note(
                f"{len(handles)} of {len(calls)} inputs were submitted; submitting all of them "
                "again is safe"
            )
            raise errors[0]
        return handles

    def message_sent(self) -> Mapping[str, str]:
        observers = self.settings.observers
        return Observers(switched_on(observers)).message_sent() if observers else {}

    def _enqueue(self, call: Call) -> Handle[S] | None:
        if call.thread is None or self.threads is None:
            return None
        store, key = require_shared(self.settings.store), self._addressed(call)
        update = self.graph.schema.start_input(call.input)
        observers = Observers(switched_on(self.settings.observers))
        found = enqueue(self.threads, store, key, update, call, observers)
        if found is None:
            return None
        record, reused = found
        return self._handle(key, record.run_id, record.status, reused=reused)

    def _handed(self, call: Call, delay: float, priority: int | None) -> Call:
        store = require_shared(self.settings.store)
        if not self.settings.preserve:
            raise InvalidRequest(
                "preserve=False deletes a thread when its run completes, before its result can be "
                "read elsewhere: compile the app of submitted runs without it"
            )
        if not delay <= _LONGEST_DELAY:
            raise InvalidRequest(f"a delay is at most {_LONGEST_DELAY} seconds, not {delay}")
        due_at = NOW - max(0, int(delay * 1_000_000))  # the store adds its time
        if priority is None:
            known = None if call.thread is None else store.thread(self.key(call.thread))
            priority = known.priority if known else 0
        if not -_HIGHEST <= priority <= _HIGHEST:
            raise InvalidRequest(f"a priority is from -{_HIGHEST} to {_HIGHEST}, not {priority}")
        assignment = Assignment(lane=self.lane, due_at=due_at, priority=priority)
        if call.config is not None and self.graph.config_type is None:
            raise InvalidRequest(UNDECLARED_CONFIG)
        return msgspec.structs.replace(self._configured(call), assignment=assignment)

    def _configured(self, call: Call) -> Call:
        wanted = self.graph.config_type
        if wanted is None or call.config is None:
            return call
        return msgspec.structs.replace(call, config=read_config(call.config, wanted))

    def _found(self, call: Call) -> Handle[S] | None:
        return self._existing(call) if call.if_exists == "keep" else self._enqueue(call)

    def _existing(self, call: Call) -> Handle[S] | None:
        if call.thread is None:
            raise InvalidRequest("if_absent= needs a thread: without one, each call starts another")
        threads, key = self.stored(call.thread)[0], self._addressed(call)
        info = threads.store.thread(key)
        return self._handle(key, info.run_id, info.status, reused=True) if info else None

    def _handed_over(self, planned: PlannedRun, ending: Ending) -> Handle[S]:
        journal = planned.plan.journal
        found = self._handle(planned.key, planned.plan.run_id, ending.status)
        return msgspec.structs.replace(found, seq=journal.head if journal else None)

    def _handle(
        self, key: ThreadKey | None, run_id: str, status: RunStatus, *, reused: bool = False
    ) -> Handle[S]:
        if key is None:
            raise AssertionError("a run that is handed over has a thread")
        return Handle(key, run_id, status, reused, self)

    def wait(self, thread: Thread, timeout: float | None = None) -> Result[S]:
        from threading import Event as Flag

        threads, key = self.stored(thread)
        news, end = Flag(), None
        try:
            for pause in awaiting(threads.store, key, timeout):
                if has_stopped(threads, key):
                    break
                if end is None and pause > 0:
                    end = when_stopped(threads.store, key, news.set)
                elif news.wait(pause):
                    news.clear()
        finally:
            if end is not None:
                end()
        return self._at_rest(key)

    async def await_result(self, thread: Thread) -> Result[S]:
        import asyncio

        threads, key = self.stored(thread)
        loop, news, end = asyncio.get_running_loop(), asyncio.Event(), None

        def tell() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(news.set)

        try:
            for pause in awaiting(threads.store, key, None):
                if await self.off_loop(has_stopped, threads, key):
                    break
                if end is None:
                    end = when_stopped(threads.store, key, tell)
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await news.wait()
                    news.clear()
        finally:
            if end is not None:
                end()
        return await self.off_loop(self._at_rest, key)

    def _at_rest(self, key: ThreadKey) -> Result[S]:
        threads, _ = self.stored(key)
        position, entry, record = threads.standing(key)
        info = thread_info(entry, record, waits_at(position.reserved))
        return self._result(entry.run_id, key, rest_at(position, info.status, info.wake_at))

    def stream(self, call: Call) -> Iterator[Event[S]]:
        """Stream the run's events. It starts now, not when the first event is read."""
        planned = self.begin(call)
        if isinstance(planned, Result):
            return iter(self._resting(planned, call.mode))
        return EventStream(self._events(planned))

    def astream(self, call: Call) -> AsyncIterator[Event[S]]:
        return AsyncEventStream(partial(self._astream, call))

    async def _astream(self, call: Call) -> StreamParts:
        planned = await self.off_loop(self.begin, call)
        if isinstance(planned, Result):
            found = await self.off_loop(self._resting, planned, call.mode)
            return _each(found), None
        drive = planned.adrive()

        async def conclude() -> None:
            await self.off_loop(self.conclude, planned, drive.result())

        return drive.events(), conclude

    def begin(self, call: Call) -> PlannedRun | Result[S]:
        """Plan a run and let a driver perform it; then ``conclude``.

        A thread waiting for a person, or completed with the same input, is returned as it is.
        """
        key = self._addressed(call) if call.thread is not None else None
        if call.config is not None:
            call = self._configured(call)
        if call.tags:
            require_tags(self.settings.store)
        observers, executors = self.settings.observers, self.executors
        if observers and (on := switched_on(observers)) != observers:
            observers = on
            if isinstance(executors, LocalExecutors | ExecutorChoice):
                executors = executors.seen_by(on)
        if call.file is not None:
            plan, call = self._start_from_file(call, key, observers)
        else:
            plan = self._start(call, key, self._planner(call, observers))
        if plan.ended is None:
            if call.tags and plan.journal is not None:
                plan.journal.tags = added_tags(self.settings.store, plan.journal.key, call.tags)
            return PlannedRun(
                call,
                plan,
                store=self.settings.store,
                committer=self._committer,
                observers=observers,
                executors=executors,
                begin=self._begin_child,
            )
        found = self._result(plan.run_id, key, plan.ended)
        if found.status != "completed":
            return found
        log_reuse(found)
        if key is not None and not self.settings.preserve:
            entry = plan.position.entry
            self._drop(key, plan.position.seq, entry.id if entry else None)
        return msgspec.structs.replace(found, reused=True)

    def _planner(self, call: Call, observers: tuple[Observer, ...]) -> MakePlan:
        graph, settings, is_assigned = self._graph, self.settings, call.assignment is not None
        return partial(
            RunPlan,
            graph=graph,
            clock=settings.clock,
            config=graph.config.overridden(call.options) if call.options else graph.config,
            options=call.options,
            interval=settings.interval,
            node_config=call.config,
            has_readers=bool(observers) or call.mode is not None,
            feeding=is_assigned and call.is_claimed,
            streaming=call.mode,
            accept_changes=call.accept_changes,
            leave=self._leave,
            queues=is_assigned and call.queues,
            spawn=self.spawn,
            memory=self.memory_of,
        )

    def memory_of(self, tenant: str) -> AppMemory:
        from milecastle.app.memory import AppMemory, Memory

        settings, threads = self.settings, self.threads
        if threads is None:
            raise InvalidRequest("long-term memory needs a store: compile(store=...)")
        given = settings.memory or Memory()
        found = threads.store, tenant, given, threads.codec, settings.encryption
        return AppMemory(*found, self.off_loop)

    def spawn(
        self, parent: ThreadKey, run_id: str, config: Any, app: Any, children: Sequence[NewChild]
    ) -> None:
        peer = self._peer(app)
        is_same = peer.graph.config_type is self.graph.config_type is not None
        calls = child_calls(parent, run_id, children, config if is_same else None)
        if len(calls) == 1:
            handles = [peer.submit(calls[0], priority=0)]
        else:
            handles = peer.submit_all(calls, 0.0, 0)
        for handle, call in zip(handles, calls, strict=True):
            if handle.reused:
                refuse_taken(require_shared(self.settings.store), call)

    def _peer(self, app: Any) -> Runner[Any]:
        own, is_name = self.settings, type(app) is str
        name: str = app if is_name else app.graph.name
        found: Runner[Any] | None = self if name == self.graph.name else self.peers.get(name)
        if found is None and is_name:
            raise InvalidRequest(
                f"this worker does not serve a graph {quoted(name)}: let it serve that graph too, "
                "or give ctx.spawn() its app"
            )
        if found is None or not (is_name or found.graph.fingerprint == app.fingerprint):
            runner: Runner[Any] = app.runner
            given = runner.settings
            if given.store not in (None, own.store) and (
                given.place is None or given.place != own.place
            ):
                raise InvalidRequest(
                    f"graph {quoted(name)} was compiled with another store than its parent's: "
                    "compile both with the same URL, or with the same store object"
                )
            found = runner.rebuilt(store=own.store, place=own.place, clock=own.clock)
            self.peers.setdefault(name, found)
        if (found.settings.encryption is None) != (own.encryption is None):
            raise InvalidRequest(
                f"graph {quoted(name)} and its parent {quoted(self.graph.name)} must both encrypt, "
                "or neither: the state of a child is sent to its parent"
            )
        return found

    def _start(self, call: Call, key: ThreadKey | None, make: MakePlan) -> RunPlan:
        input, threads = call.input, self.threads
        discards = call.if_exists in ("discard", "cancel") or call.instead_of is not None
        compares = discards or call.again or call.key is not None
        if compares and (input is None or key is None or threads is None):
            raise InvalidRequest(
                "key=, again= and discard= need an input, a thread and a store: without them "
                "there is no earlier run to compare with"
            )
        if input is None:
            if threads is None:
                raise InvalidRequest("resuming needs a store: compile(store=...)")
            if key is None:
                raise InvalidRequest("resume() needs a thread: resume('my-thread')")
            return Start(threads, key, call, make).resumed()
        update, new_id = self.graph.schema.start_input(input), self.settings.clock.new_id
        if threads is None:
            position = fresh_position(self.graph.schema)
            return make(position=position, run_id=call.run_id or new_id(), update=update)
        key = key or ThreadKey(self.settings.tenant, new_id())
        return Start(threads, key, call, make).with_input(update)

    def _start_from_file(
        self, call: Call, key: ThreadKey | None, observers: tuple[Observer, ...]
    ) -> tuple[RunPlan, Call]:
        position, note, call = self.files().read(call)
        call = self._configured(call)
        make, threads = self._planner(call, observers), self.threads
        if threads is None:
            run_id = position.entry.run_id if position.entry else ""
            return make(position=position, run_id=run_id), call
        key = key or ThreadKey(self.settings.tenant, self.settings.clock.new_id())
        return Start(threads, key, call, make).at(position, note), call

    def _resting(self, result: Result[S], mode: StreamMode | None) -> list[Event[S]]:
        newest, store = None, self.settings.store
        if store is not None and result.thread is not None:
            newest = store.head(result.thread)
        return resting_events(result, mode or "updates", newest)

    def _events(self, planned: PlannedRun) -> Generator[Event[S], None, None]:
        ending = yield from planned.events()
        self.conclude(planned, ending)

    def conclude(self, planned: PlannedRun, ending: Ending) -> Result[S]:
        journal, given = planned.plan.journal, planned.call.given
        key = journal.key if journal else None
        if journal and ending.status == "completed" and not self.settings.preserve:
            self._drop(journal.key, journal.head, journal.head_id)
        if given is not NOTHING_GIVEN:
            refuse_refused(key.thread if key else "", given, ending.interrupts)
        return self._result(planned.plan.run_id, key, ending)

    def _drop(self, key: ThreadKey, head: int, head_id: str | None) -> None:
        settings = self.settings
        if settings.store:
            with suppress(Conflict):  # another run has started meanwhile and owns the thread
                remove_thread(settings.store, key, settings.encryption, head, head_id)

    def _result(self, run_id: str, key: ThreadKey | None, ending: Ending) -> Result[S]:
        return Result(
            state=self.graph.schema.present(ending.values),
            status=ending.status,
            run_id=run_id,
            thread=key,
            nodes=ending.nodes,
            next=ending.next,
            step=ending.step,
            timestamp=to_datetime(ending.time),
            interrupts=ending.interrupts,
            wake_at=None if ending.wake_at is None else to_datetime(ending.wake_at),
            shown=self.graph.schema.output,
        )

    def files(self) -> PortableFiles:
        from milecastle.app.portable.files import PortableFiles

        settings = self.settings
        return PortableFiles(
            self.graph,
            settings.clock,
            folder=settings.checkpoint_dir,
            signing_key=settings.signing_key,
        )

    def key(self, thread: Thread) -> ThreadKey:
        if isinstance(thread, ThreadKey):
            refuse_reserved(thread.tenant)
            return thread
        if type(thread) is not str:
            refuse_thread(thread)
        refuse_subgraph(thread)
        return ThreadKey(self.settings.tenant, thread)

    def _addressed(self, call: Call) -> ThreadKey:
        key = self.key(call.thread) if type(call.thread) is not str else None
        name = key.thread if key else call.thread
        starts = call.input is not None or call.file is not None
        if starts and not call.is_own:
            refuse_own(name)
        else:
            refuse_subgraph(name)
        return key or ThreadKey(self.settings.tenant, name)

    def changed(self, thread: Thread) -> tuple[Threads, ThreadKey]:
        threads, key = self.stored(thread)
        head = threads.store.head(key)
        record = threads.store.run(key, head.run_id) if head else None
        threads.refuse_foreign(record)
        if record is not None and (
            self.graph.hooks or PARENT in record.metadata or record.status == "cancelled"
        ):
            settle_thread(threads, key)
        return threads, key

    def stored(self, thread: Thread) -> tuple[Threads, ThreadKey]:
        if self.threads is None:
            raise InvalidRequest("this app has no store, so it has no threads: compile(store=...)")
        return self.threads, self.key(thread)

    async def in_pages(self, found: Iterator[T]) -> AsyncIterator[T]:
        def take() -> list[T]:
            return list(islice(found, 100))

        while page := await self.off_loop(take):
            for item in page:
                yield item

    async def off_loop(self, function: Callable[..., T], *args: Any) -> T:
        store = self.settings.store
        if store is None or not (store.blocking or self.settings.encryption):
            return function(*args)
        from milecastle.support.off_loop import off_loop

        return await off_loop(function, *args)


def _require_lasting(settings: AppSettings) -> None:
    require_shared(settings.store)
    if not settings.preserve:
        raise InvalidRequest(
            "preserve=False deletes a thread when its run completes, before its hooks are called: "
            "compile a graph with hooks without it"
        )


def _is_final(error: Conflict, call: Call) -> bool:
    """True if a retry cannot help: the thread is busy, or a run was to be replaced."""
    return isinstance(error, RunInProgress) or call.instead_of is not None


def _looks_first(call: Call) -> bool:
    return call.if_exists in ("queue", "keep") or call.names_run


async def _each(events: Sequence[Event[Any]]) -> AsyncGenerator[Event[Any], None]:
    for event in events:
        yield event


def _with_caches(graph: CompiledGraph, settings: AppSettings) -> CompiledGraph:
    if settings.workspace is None:
        return graph
    from milecastle.builds.reuse import with_caches

    return with_caches(
        graph, settings.workspace, tenant=settings.tenant, encryption=settings.encryption
    )
