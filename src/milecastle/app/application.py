"""The app: a compiled graph with a store, ready to be called, sync or async.

Each method here is a promise to users and one line naming the part that does the work: ``runner``
and ``runs`` for runs, ``threads`` for threads, ``upkeep`` and ``portable`` for the rest. The async
versions do the same through the asynchronous driver.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from milecastle.app.encryption.keyring import Keyring
from milecastle.app.replaying import Replay, replay_thread
from milecastle.app.results import Result, Snapshot
from milecastle.app.runner import Runner, Thread
from milecastle.app.runs.answering import UNANSWERED, Given
from milecastle.app.runs.calls import Call, IfBusy, resumed, started, submitted
from milecastle.app.runs.cancelling import cancel_run
from milecastle.app.runs.streams import StreamMode
from milecastle.app.runs.submission import Handle, joined_store
from milecastle.app.threads.answers import answers_of
from milecastle.app.threads.children import own_threads
from milecastle.app.threads.compatibility import Compatibility
from milecastle.app.threads.difference import Change, difference
from milecastle.app.threads.log import At, Migrate, Migration
from milecastle.app.threads.messages import (
    discard_message,
    read_debounce,
    send_message,
    unread_messages,
)
from milecastle.app.threads.migrating import foresee
from milecastle.app.threads.reading import afollow, emitted_after, follow, history, snapshot
from milecastle.app.threads.tagging import change_tags
from milecastle.app.upkeep.removing import delete_thread
from milecastle.errors import InvalidRequest, ThreadNotFound
from milecastle.graph.structure import CompiledGraph
from milecastle.model.actor import Actor, AnswerRecord
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.event import Emitted, Event
from milecastle.model.keys import ThreadKey, refuse_reserved
from milecastle.model.message import Message
from milecastle.model.notebook import card, drawing
from milecastle.model.policies import ExecutionOptions
from milecastle.model.run import Mode, RunStatus, ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.mailbox import Sent
from milecastle.ports.store import Store
from milecastle.support.migration_hints import explains_keywords, refuse_attribute

if TYPE_CHECKING:
    from milecastle.app.memory import AppMemory
    from milecastle.app.portable.files import FilePath
    from milecastle.builds.plan import Plan
    from milecastle.builds.workspace import Workspace
    from milecastle.ports.files import StoredFiles

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
AnyApp = TypeVar("AnyApp", bound="App[Any]")


def _async_version(
    method: Callable[Concatenate[AnyApp, P], T],
) -> Callable[Concatenate[AnyApp, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def called(self: AnyApp, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await self.runner.off_loop(partial(getattr(self, name), *args, **kwargs))
        return found

    name = called.__name__
    called.__name__, called.__qualname__ = f"a{name}", f"App.a{name}"
    called.__doc__ = f"Async version of ``{name}``."
    return called


class App(Generic[S]):
    """A compiled graph, ready to run.

    Immutable and thread-safe; created by ``StateGraph.compile``.
    """

    def __init__(self, runner: Runner[S]) -> None:
        self._runner = runner

    @property
    def runner(self) -> Runner[S]:
        """Plans and drives the app's runs: for workers, servers, builds and simulators."""
        return self._runner

    @property
    def graph(self) -> CompiledGraph:
        """The graph this app runs."""
        return self._runner.graph

    @property
    def store(self) -> Store:
        """The store; ``InvalidRequest`` if nothing is saved (``has_store``)."""
        store = self._runner.settings.store
        if store is None:
            raise InvalidRequest("this app has no store: compile(store=...)")
        return store

    @property
    def has_store(self) -> bool:
        """True if threads are saved."""
        return self._runner.settings.store is not None

    @property
    def tenant(self) -> str:
        """Tenant for threads given only by name."""
        return self._runner.settings.tenant

    @property
    def encryption(self) -> Keyring | None:
        """The keyring encrypting the threads; ``None`` if they are stored unencrypted."""
        return self._runner.settings.encryption

    @property
    def fingerprint(self) -> str:
        """Hash of the graph's structure: equal in every process and on every Python."""
        return self._runner.graph.fingerprint

    @property
    def interval(self) -> int:
        """Threads are saved every ``interval`` steps."""
        return self._runner.settings.interval

    @property
    def workspace(self) -> Workspace | None:
        """The folder for file runs and caches, or ``None``."""
        return self._runner.settings.workspace

    @property
    def files(self) -> StoredFiles:
        """The app tenant's files in object storage: ``store(path)`` and ``open(file)``."""
        return self._runner.stored_files()

    @property
    def memory(self) -> AppMemory:
        """The app tenant's long-term memory, outside runs: ``app.memory.get(...)``."""
        return self._runner.memory_of(self.tenant)

    @explains_keywords
    def invoke(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        key: str | None = None,
        again: bool = False,
        take_over: bool = False,
        discard: bool = False,
        tags: Iterable[str] = (),
        options: ExecutionOptions | None = None,
        config: Any = None,
        file: FilePath | None = None,
        checkpoint: FilePath | None = None,
    ) -> Result[S]:
        """Run to the end or an interrupt; a failure is raised.

        Calling again is safe. If the thread's newest run has this input: an unfinished run
        resumes from its last committed step, and a completed run's result is returned without
        running anything (``result.reused``); ``again=True`` then starts a new run on top. ``key``
        is an idempotency key, compared instead of the input. While a live process drives the
        thread, ``RunInProgress`` is raised; ``take_over=True`` takes over anyway. A different input
        on an unfinished thread is refused; ``discard=True`` closes that run and starts from the
        state before its input. ``None`` as input means ``resume``, or with ``file`` resuming from
        that portable file (``checkpoint`` is another name for ``file``). The run adds ``tags`` to
        its thread. Nodes receive ``config``: if the graph declares its type, it is stored and
        compared with the input. For file graphs use ``build``.
        """
        call = started(
            input, thread, key, again, take_over, discard, tags, options, config, file, checkpoint
        )
        return self._runner.invoke(call)

    @explains_keywords
    async def ainvoke(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        key: str | None = None,
        again: bool = False,
        take_over: bool = False,
        discard: bool = False,
        tags: Iterable[str] = (),
        options: ExecutionOptions | None = None,
        config: Any = None,
        file: FilePath | None = None,
        checkpoint: FilePath | None = None,
    ) -> Result[S]:
        """Async version of ``invoke``."""
        call = started(
            input, thread, key, again, take_over, discard, tags, options, config, file, checkpoint
        )
        return await self._runner.ainvoke(call)

    @explains_keywords
    def resume(
        self,
        thread: Thread,
        answer: Any = UNANSWERED,
        *,
        answers: Mapping[str, Any] | None = None,
        question: str | None = None,
        key: str | None = None,
        by: Actor | str | None = None,
        accept_changes: bool = False,
        take_over: bool = False,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """Resume from the thread's head, in any process.

        ``answer`` answers the one open question, or ``question`` by its id; ``answers`` several, by
        their ids. An invalid answer is refused, and the thread is unchanged. With the same ``key``
        it is the same answer: given again, it is not taken by another question, and the thread is
        returned as it is, or continues; a run cancelled since is not continued:
        ``ResumeRefused``. The last 100 keys of the thread's answers are known.
        ``accept_changes`` resumes even if the state
        does not match the changed graph; the history records it. While a live process drives the
        thread, ``RunInProgress`` is raised, unless ``take_over`` is set. ``config`` replaces the
        run's. ``by`` says who answers: it is stored with the answer (``answers``).
        """
        given = Given(answer=answer, answers=answers, question=question, key=key, by=_actor(by))
        call = resumed(thread, given, accept_changes, take_over, options, config)
        return self._runner.invoke(call)

    @explains_keywords
    async def aresume(
        self,
        thread: Thread,
        answer: Any = UNANSWERED,
        *,
        answers: Mapping[str, Any] | None = None,
        question: str | None = None,
        key: str | None = None,
        by: Actor | str | None = None,
        accept_changes: bool = False,
        take_over: bool = False,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """Async version of ``resume``."""
        given = Given(answer=answer, answers=answers, question=question, key=key, by=_actor(by))
        call = resumed(thread, given, accept_changes, take_over, options, config)
        return await self._runner.ainvoke(call)

    @explains_keywords
    def submit(
        self,
        input: S | Mapping[str, Any],
        thread: Thread | None = None,
        *,
        key: str | None = None,
        again: bool = False,
        retry: bool = True,
        delay: float = 0.0,
        priority: int = 0,
        if_busy: IfBusy = "reject",
        if_absent: bool = False,
        instead_of: str | None = None,
        tags: Iterable[str] = (),
        keys: Mapping[str, str] | None = None,
        config: Any = None,
        connection: Any = None,
    ) -> Handle[S]:
        """Queue a run for the workers and return: the input is committed, nothing is run here.

        Submitting again is safe, as calling ``invoke`` again is: the same input, or the same
        ``key``, finds the run it started (``handle.reused``), and retries it if it failed or was
        cancelled, unless ``retry`` is false. ``delay`` is how many seconds workers
        wait before they start it; of one tenant's runs and graph that are due, they start those
        with the higher ``priority`` first (from -100 to 100). A thread with an unfinished run on
        another input is busy, and refused. With ``if_busy="queue"`` the input waits its turn
        instead: the end of one run starts the next, on its state, whatever its ``delay`` and
        ``priority``. With ``if_busy="cancel"`` the unfinished run is closed and this one starts
        from the state before its input. With ``if_absent`` nothing is started on an existing
        thread, whatever its input or ending. ``instead_of`` is the id of an unfinished run,
        as seen by the caller: only that run is closed, and only if it is not in progress (with
        ``if_busy="cancel"``, also then); ``Conflict`` if the thread has another run by now. A
        started run adds ``tags`` to its thread. ``keys`` is the run's key for limits by key:
        ``keys={"customer": "c7"}``, one name and its value. Without it, a new run has the
        thread's last key. ``config``, of the type the graph declares, is
        stored and compared with the input; without one, a new run has the thread's last
        config. ``connection`` is the caller's own to the store's database, a psycopg or a sqlite3
        connection: the run is submitted in its transaction, and is there if that commits.
        """
        call = submitted(
            input, thread, key, again, if_busy, if_absent, instead_of, tags, config, retry, keys
        )
        if connection is not None:
            return self._runner.submit_within(connection, call, delay, priority)
        return self._runner.submit(call, delay, priority)

    def create_key(self, thread: Thread) -> None:
        """Give a new thread its encryption key, for a ``submit`` with ``connection`` later.

        Call it before that transaction begins. Without encryption, nothing is done.
        """
        self._runner.create_key(thread)

    acreate_key = _async_version(create_key)

    def notify_workers(self) -> None:
        """Notify workers that runs may be due: after a transaction that submitted some.

        Without it they find the runs when they look by themselves, within a second.
        """
        store = self._runner.settings.store
        if store is not None and store.ring is not None:
            store.ring()

    anotify_workers = _async_version(notify_workers)

    @explains_keywords
    async def asubmit(
        self,
        input: S | Mapping[str, Any],
        thread: Thread | None = None,
        *,
        key: str | None = None,
        again: bool = False,
        retry: bool = True,
        delay: float = 0.0,
        priority: int = 0,
        if_busy: IfBusy = "reject",
        if_absent: bool = False,
        instead_of: str | None = None,
        tags: Iterable[str] = (),
        keys: Mapping[str, str] | None = None,
        config: Any = None,
        connection: Any = None,
    ) -> Handle[S]:
        """Async version of ``submit``; parallel calls are committed together.

        ``connection`` is used in another thread, which sqlite3 allows only if it was told so.
        """
        call = submitted(
            input, thread, key, again, if_busy, if_absent, instead_of, tags, config, retry, keys
        )
        if connection is not None:
            within = self._runner.submit_within
            return await self._runner.off_loop(within, connection, call, delay, priority)
        return await self._runner.asubmit(call, delay, priority)

    def submit_many(
        self,
        inputs: Mapping[str, S | Mapping[str, Any]],
        *,
        again: bool = False,
        delay: float = 0.0,
        priority: int = 0,
        if_busy: IfBusy = "reject",
        tags: Iterable[str] = (),
        keys: Mapping[str, str] | None = None,
        config: Any = None,
    ) -> list[Handle[S]]:
        """``submit`` for many threads, each with its input: many are committed together.

        A refused input keeps no other from being submitted. The first error is raised at
        the end, and submitting them all again is safe.
        """
        common = submitted(None, None, None, again, if_busy, False, None, tags, config, keys=keys)
        return self._runner.submit_all(_for_each(inputs, common), delay, priority)

    async def asubmit_many(
        self,
        inputs: Mapping[str, S | Mapping[str, Any]],
        *,
        again: bool = False,
        delay: float = 0.0,
        priority: int = 0,
        if_busy: IfBusy = "reject",
        tags: Iterable[str] = (),
        keys: Mapping[str, str] | None = None,
        config: Any = None,
    ) -> list[Handle[S]]:
        """Async version of ``submit_many``."""
        common = submitted(None, None, None, again, if_busy, False, None, tags, config, keys=keys)
        return await self._runner.asubmit_all(_for_each(inputs, common), delay, priority)

    def answer(
        self,
        thread: Thread,
        answer: Any = UNANSWERED,
        *,
        answers: Mapping[str, Any] | None = None,
        question: str | None = None,
        key: str | None = None,
        by: Actor | str | None = None,
        config: Any = None,
    ) -> Handle[S]:
        """Answer open questions as ``resume`` does, and let a worker continue the run.

        With the same ``key``, sending an answer again is safe (``handle.reused``). Otherwise
        ``AlreadyAnswered`` says a question was answered, ``NotAsked`` that it is not open.
        ``config`` replaces the run's.
        """
        given = Given(answer=answer, answers=answers, question=question, key=key, by=_actor(by))
        if not given:
            raise InvalidRequest("answer() needs answer= or answers=")
        return self._runner.submit(Call(thread=thread, given=given, config=config))

    async def aanswer(
        self,
        thread: Thread,
        answer: Any = UNANSWERED,
        *,
        answers: Mapping[str, Any] | None = None,
        question: str | None = None,
        key: str | None = None,
        by: Actor | str | None = None,
        config: Any = None,
    ) -> Handle[S]:
        """Async version of ``answer``."""
        given = Given(answer=answer, answers=answers, question=question, key=key, by=_actor(by))
        if not given:
            raise InvalidRequest("aanswer() needs answer= or answers=")
        return await self._runner.asubmit(Call(thread=thread, given=given, config=config))

    def retry(self, thread: Thread, *, delay: float = 0.0, config: Any = None) -> Handle[S]:
        """Queue a thread whose run failed, was lost or was cancelled for the workers.

        It resumes from its last committed step; ``config`` replaces the run's. A delivery of one of
        the graph's hooks is retried, too.
        """
        runner = self._runner.running(thread)
        return runner.submit(Call(thread=thread, config=config), delay)

    async def aretry(self, thread: Thread, *, delay: float = 0.0, config: Any = None) -> Handle[S]:
        """Async version of ``retry``."""
        runner = self._runner.running(thread)
        return await runner.asubmit(Call(thread=thread, config=config), delay)

    def send(
        self,
        thread: Thread,
        value: Any,
        topic: str = "",
        *,
        key: str | None = None,
        by: str | None = None,
        quiet: float | None = None,
        at_most: float | None = None,
        connection: Any = None,
    ) -> Sent:
        """Send a message to a thread: stored at once, in order, until a node receives it.

        At any time: before any code waits for it, while a run is live, while no worker runs. A
        thread that waits for the topic becomes due. With ``key``, sending again is safe
        (``sent.reused``), until the entry that consumed the message is pruned. ``by`` names the
        sender. ``sent.status`` is the thread's: a completed one has the message in its next run.
        With ``quiet`` a waiting thread is due when so many seconds have passed without another
        message, but at most ``at_most`` seconds after the first one it has not received.
        With ``connection``, it is sent in the caller's transaction, as ``submit`` does.
        """
        threads, found = self._runner.stored(thread)
        joined = None
        if connection is not None:
            joined = joined_store(threads.store, connection, found)
        carried = self._runner.message_sent()
        return send_message(
            threads,
            found,
            value,
            topic,
            key=key,
            by=by,
            debounce=read_debounce(quiet, at_most),
            joined=joined,
            carried=carried,
        )

    asend = _async_version(send)

    def mailbox(self, thread: Thread, topic: str | None = None) -> Sequence[Message]:
        """A thread's unread messages, oldest first: of one topic, or all."""
        return unread_messages(*self._runner.stored(thread), topic)

    amailbox = _async_version(mailbox)

    def discard(self, thread: Thread, number: int) -> bool:
        """Remove an unread message that no code can receive; ``False`` if it is not unread.

        A run that has received it gets ``Conflict`` at its next commit, and starts the step again.
        """
        return discard_message(*self._runner.stored(thread), number)

    adiscard = _async_version(discard)

    def emitted(
        self, thread: Thread, *, after: Emitted | tuple[int, int] | None = None
    ) -> list[Emitted]:
        """Values emitted with ``keep`` by the current step's nodes, in order.

        ``after`` is the last one seen, or its attempt and offset if that was in the same step.
        They end with the step, whose result is then in the state. In a subgraph, ``thread`` is
        that of the subgraph.
        """
        return emitted_after(*self._runner.stored(thread), after)

    aemitted = _async_version(emitted)

    def wait(self, thread: Thread, timeout: float | None = None) -> Result[S]:
        """Wait until the thread's run ends or asks something, in whatever process it runs.

        Sleeps and retries are waited for. A failed run raises ``RunFailed``, a cancelled one
        ``RunCancelled``. After ``timeout`` seconds, ``TimeoutError``.
        """
        return self._runner.wait(thread, timeout)

    async def await_result(self, thread: Thread) -> Result[S]:
        """Async version of ``wait``; limit the time with ``asyncio.timeout``."""
        return await self._runner.await_result(thread)

    @explains_keywords
    def stream(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        mode: StreamMode = "updates",
        key: str | None = None,
        again: bool = False,
        take_over: bool = False,
        discard: bool = False,
        tags: Iterable[str] = (),
        answer: Any = UNANSWERED,
        answers: Mapping[str, Any] | None = None,
        subgraphs: bool = False,
        options: ExecutionOptions | None = None,
        config: Any = None,
        file: FilePath | None = None,
        checkpoint: FilePath | None = None,
    ) -> Iterator[Event[S]]:
        """Run like ``invoke`` and yield events: each node's update, each state, or everything.

        ``stream(None, thread, answer=...)`` is ``resume``, as events. Subgraphs' events are
        omitted unless ``subgraphs`` is set. Stop reading whenever you like: the run ends cleanly at
        its last commit.
        """
        call = started(
            input, thread, key, again, take_over, discard, tags, options, config, file, checkpoint
        )
        given = Given(answer=answer, answers=answers)
        return self._runner.stream(replace(call, mode=mode, subgraphs=subgraphs, given=given))

    @explains_keywords
    def astream(
        self,
        input: S | Mapping[str, Any] | None = None,
        thread: Thread | None = None,
        *,
        mode: StreamMode = "updates",
        key: str | None = None,
        again: bool = False,
        take_over: bool = False,
        discard: bool = False,
        tags: Iterable[str] = (),
        answer: Any = UNANSWERED,
        answers: Mapping[str, Any] | None = None,
        subgraphs: bool = False,
        options: ExecutionOptions | None = None,
        config: Any = None,
        file: FilePath | None = None,
        checkpoint: FilePath | None = None,
    ) -> AsyncIterator[Event[S]]:
        """Async version of ``stream``."""
        call = started(
            input, thread, key, again, take_over, discard, tags, options, config, file, checkpoint
        )
        given = Given(answer=answer, answers=answers)
        return self._runner.astream(replace(call, mode=mode, subgraphs=subgraphs, given=given))

    @explains_keywords
    def build(
        self,
        input: S | Mapping[str, Any] | None = None,
        *,
        mode: Mode = "incremental",
        thread: Thread | None = None,
        options: ExecutionOptions | None = None,
    ) -> Result[S]:
        """Build a file graph in the app's workspace; a failure is raised.

        ``mode="incremental"`` runs only the necessary nodes and reuses the rest, ``"clean"`` runs
        everything, ``"resume-only"`` resumes the run that failed, or is refused. ``thread`` is by
        default named after the graph; runs of one thread build on each other.
        """
        from milecastle.app.file_calls import run_files

        return run_files(self, input, mode, thread, options)

    @explains_keywords
    async def abuild(
        self,
        input: S | Mapping[str, Any] | None = None,
        *,
        mode: Mode = "incremental",
        thread: Thread | None = None,
        options: ExecutionOptions | None = None,
    ) -> Result[S]:
        """Async version of ``build``."""
        from milecastle.app.file_calls import arun_files

        return await arun_files(self, input, mode, thread, options)

    @explains_keywords
    def plan(
        self,
        input: S | Mapping[str, Any] | None = None,
        *,
        mode: Mode = "incremental",
        thread: Thread | None = None,
    ) -> Plan:
        """Plan of a ``build`` with the same arguments: nodes to run and to reuse, and why."""
        from milecastle.app.file_calls import plan_files

        return plan_files(self, input, mode, thread)

    @explains_keywords
    async def aplan(
        self,
        input: S | Mapping[str, Any] | None = None,
        *,
        mode: Mode = "incremental",
        thread: Thread | None = None,
    ) -> Plan:
        """Async version of ``plan``."""
        from milecastle.support.off_loop import off_loop

        return await off_loop(self.plan, input, mode=mode, thread=thread)

    def state(self, thread: Thread, at: At = None) -> Snapshot[S]:
        """A thread's state at its head, or at a checkpoint given by seq or id."""
        return snapshot(*self._runner.stored(thread), at)

    astate = _async_version(state)

    def history(
        self, thread: Thread, limit: int | None = None, *, subgraphs: bool = False
    ) -> Iterator[CheckpointMetadata]:
        """The thread's checkpoints, newest first. No state is decoded.

        With ``subgraphs`` its subgraphs' are among them, by time.
        """
        return history(*self._runner.stored(thread), limit, subgraphs=subgraphs)

    async def ahistory(
        self, thread: Thread, limit: int | None = None, *, subgraphs: bool = False
    ) -> AsyncIterator[CheckpointMetadata]:
        """Async version of ``history``."""
        found = self.history(thread, limit, subgraphs=subgraphs)
        async for known in self._runner.in_pages(found):
            yield known

    def answers(self, thread: Thread) -> list[AnswerRecord]:
        """The thread's answers and timeouts, oldest first: what, when, and who gave them.

        Pruned checkpoints' answers are not among them.
        """
        return list(answers_of(*self._runner.stored(thread)))

    aanswers = _async_version(answers)

    def follow(
        self, thread: Thread, *, after: int = 0, poll: float = 0.2, emitted: bool = False
    ) -> Iterator[Event[S]]:
        """A thread's states from a seq on, then those to come, until its run stops.

        The process running the thread may be another. ``poll`` is how often to look, in seconds.
        ``emitted`` adds values nodes emit from now on, if a worker runs the thread: on PostgreSQL
        in any process, otherwise one with this very store. Values may be lost, for example if this
        reader is slow: a ``missed`` event says how many.
        """
        return follow(*self._runner.stored(thread), after, poll, emitted=emitted)

    def afollow(
        self, thread: Thread, *, after: int = 0, poll: float = 0.2, emitted: bool = False
    ) -> AsyncIterator[Event[S]]:
        """Async version of ``follow``."""
        runner = self._runner
        return afollow(*runner.stored(thread), after, poll, runner.off_loop, emitted=emitted)

    def migrate(
        self, from_fingerprint: str, function: Migrate, *, types: Iterable[type] = ()
    ) -> None:
        """Migrate an older graph's threads when they are next resumed.

        ``function`` receives the state as a dict and the names to run next, as the old
        graph left them, and returns both for this graph. ``types`` are the old state's types that
        this one no longer has. The history records the migration. The fingerprint may be that of a
        subgraph: its threads are migrated with their parent's.
        """
        self._runner.settings.migrations[from_fingerprint] = Migration(function, tuple(types))

    def compatibility(self, thread: Thread) -> Compatibility:
        """A thread's compatibility with this graph: reasons against resuming it, or the changes.

        Subgraphs it is in the middle of and registered migrations are taken into account; an
        unfinished flow is replayed. Nothing is changed, and no graph's state is decoded.
        """
        threads, key = self._runner.stored(thread)
        head = threads.store.head(key)
        if head is None:
            raise ThreadNotFound(tenant=key.tenant, thread=key.thread)
        found = foresee(threads, key, head)
        if found and head.next and threads.graph.has_flow:
            replayed = replay_thread(self._runner, threads, key)
            if replayed.verdict == "differs":
                return msgspec.structs.replace(found, reasons=(replayed.detail,))
        return found

    acompatibility = _async_version(compatibility)

    def replay(self, thread: Thread, *, nodes: Collection[str] = ()) -> Replay:
        """Compare a thread's record with this code, without writing and without calling steps.

        A flow runs against its recorded calls. Of a graph, the edges are evaluated on each
        recorded state; ``nodes`` are functions without side effects, which are called on it too,
        and what they write is compared. ``milecastle replay`` does so for many threads.
        """
        threads, key = self._runner.stored(thread)
        return replay_thread(self._runner, threads, key, nodes)

    areplay = _async_version(replay)

    def update_state(
        self, thread: Thread, update: Mapping[str, Any], at: At = None
    ) -> CheckpointMetadata:
        """Append a checkpoint with an update to the head, or branching off an older one.

        The next nodes do not change.
        """
        threads, key = self._runner.changed(thread)
        return threads.update(key, update, at)

    aupdate_state = _async_version(update_state)

    def fork(self, thread: Thread, at: At, as_thread: Thread | None = None) -> CheckpointMetadata:
        """Go back to a checkpoint: the thread's head becomes a branch from it.

        With ``as_thread`` the branch is another thread, and this one is unchanged.
        """
        threads, key = self._runner.changed(thread)
        return threads.fork(key, at, None if as_thread is None else self._runner.key(as_thread))

    afork = _async_version(fork)

    def diff(self, thread: Thread, a: At | ThreadKey, b: At = None) -> list[Change]:
        """The differences between a thread's two checkpoints, by path.

        ``diff("one", "two")`` compares two threads' heads, unless ``"two"`` is a
        checkpoint id in the first.
        """
        threads, key = self._runner.stored(thread)
        if isinstance(a, ThreadKey) or (isinstance(a, str) and threads.names_thread(key, a)):
            return self._changes(key, None, self._runner.key(a), b)
        return self._changes(key, a, key, b)

    adiff = _async_version(diff)

    def _changes(self, key: ThreadKey, a: At, other: ThreadKey, b: At) -> list[Change]:
        existing = self._runner.stored(key)[0].existing
        return difference(existing(key, a)[0].values, existing(other, b)[0].values)

    def threads(
        self,
        *,
        status: RunStatus | None = None,
        tag: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        tenant: str | None = None,
    ) -> Iterator[ThreadInfo]:
        """A tenant's threads, by name, without subgraphs'; by default the app's own.

        ``status`` and ``tag`` filter, ``after`` lists names that sort after this one.
        """
        wanted = tenant or self.tenant
        refuse_reserved(wanted)
        return own_threads(self.store, wanted, status=status, tag=tag, limit=limit, after=after)

    async def athreads(
        self,
        *,
        status: RunStatus | None = None,
        tag: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        tenant: str | None = None,
    ) -> AsyncIterator[ThreadInfo]:
        """Async version of ``threads``."""
        found = self.threads(status=status, tag=tag, limit=limit, after=after, tenant=tenant)
        async for info in self._runner.in_pages(found):
            yield info

    def tag(
        self, thread: Thread, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """Add and remove a thread's tags; return those it has then.

        A run in progress does not notice. Without arguments it only returns them.
        """
        threads, key = self._runner.stored(thread)
        return change_tags(threads.store, key, TagChange.of(add, remove))

    atag = _async_version(tag)

    def cancel(self, thread: Thread, *, run_id: str | None = None) -> bool:
        """Cancel a thread's unfinished run from outside; return whether there was one.

        The run becomes ``cancelled`` and has a failure record. A process that still drives it gets
        ``Conflict`` at its next commit. Committed steps are saved, and the thread can be resumed.
        So it is with a thread taken back to before its run's end. Waiting inputs start
        from the state before the cancelled one: ``InvalidRequest`` if that is gone. If its run has
        ended and inputs wait, the first one's run is cancelled. With ``run_id``, only that run:
        ``False`` if another one has the thread by now.
        """
        threads, key = self._runner.changed(thread)
        clock = self._runner.settings.clock
        return cancel_run(threads.store, threads.codec, clock, key, run_id)

    acancel = _async_version(cancel)

    def delete(self, thread: Thread, *, take_over: bool = False) -> bool:
        """Delete a thread with its runs, its subgraphs and its key; return whether it existed.

        While a live process drives it or inputs wait, ``RunInProgress`` is raised; ``cancel``
        first, or pass ``take_over=True``, which deletes it as it is, with the inputs waiting.
        Otherwise, a thread written to meanwhile is not deleted: ``Conflict``.
        """
        threads, key = self._runner.changed(thread)
        return delete_thread(
            threads.store, key, self._runner.settings.encryption, take_over=take_over
        )

    adelete = _async_version(delete)

    def close(self) -> None:
        """Close the store and the key store. Closing again does nothing.

        An app owns the store it was compiled with: whatever else uses it finds it closed.
        """
        settings = self._runner.settings
        if settings.store is not None:
            settings.store.close()
        if settings.encryption is not None:
            settings.encryption.close()

    aclose = _async_version(close)

    def save_checkpoint(self, path: FilePath, state: Any, node: str, config: Any = None) -> None:
        """Save a state, the node to run next and its config in a portable file."""
        self._runner.files().save(path, state, node, config)

    async def asave_checkpoint(
        self, path: FilePath, state: Any, node: str, config: Any = None
    ) -> None:
        """Async version of ``save_checkpoint``."""
        from milecastle.support.off_loop import off_loop

        await off_loop(self.save_checkpoint, path, state, node, config)

    def load_checkpoint(self, path: FilePath) -> dict[str, Any]:
        """The state, node, config, timestamp and version in a portable file, as a dict.

        ``results`` is included if it was saved at a fan-in. Nothing in the file is executed.
        """
        return self._runner.files().load(path)

    async def aload_checkpoint(self, path: FilePath) -> dict[str, Any]:
        """Async version of ``load_checkpoint``."""
        from milecastle.support.off_loop import off_loop

        return await off_loop(self.load_checkpoint, path)

    def resume_from_checkpoint(
        self, path: FilePath, config: Any = None, *, thread: Thread | None = None
    ) -> Result[S]:
        """Run from the node in a portable file; ``config`` overrides the saved one.

        With a store this starts a thread, which must not have checkpoints yet.
        """
        return self.invoke(thread=thread, config=config, file=path)

    async def aresume_from_checkpoint(
        self, path: FilePath, config: Any = None, *, thread: Thread | None = None
    ) -> Result[S]:
        """Async version of ``resume_from_checkpoint``."""
        return await self.ainvoke(thread=thread, config=config, file=path)

    def draw(self, form: str = "mermaid") -> str:
        """Draw the graph as ``"mermaid"``, ``"svg"`` or ``"text"``, offline."""
        from milecastle.draw import draw_mermaid, draw_svg, draw_text, notes_of

        drawers = {"mermaid": draw_mermaid, "svg": draw_svg, "text": draw_text}
        if form not in drawers:
            raise InvalidRequest(f"unknown drawing format {form!r}; use 'mermaid', 'svg' or 'text'")
        graph = self.graph
        return drawers[form](graph.manifest, title=graph.name, notes=notes_of(graph))

    def __repr__(self) -> str:
        graph, store = self.graph, self._runner.settings.store
        kept = "no store" if store is None else type(store).__name__
        shown = f"nodes={len(graph.nodes)}, {kept}, fingerprint {graph.fingerprint[:8]}"
        return f"{type(self).__name__}({graph.name!r}, {shown})"

    def _repr_svg_(self) -> str:
        return self.draw("svg")

    def _repr_html_(self) -> str:
        graph = self.graph
        facts = {"nodes": len(graph.nodes), "fingerprint": graph.fingerprint[:8]}
        return card(graph.name, facts, drawing(self.draw("svg"), graph.name))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            refuse_attribute("App", name)


def _actor(by: Actor | str | None) -> Actor | None:
    return Actor(by) if isinstance(by, str) else by


def _for_each(inputs: Mapping[str, Any], common: Call) -> list[Call]:
    return [replace(common, thread=thread, input=given) for thread, given in inputs.items()]
