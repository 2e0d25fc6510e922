"""A node's context.

A node asking a person runs again from its beginning once there is an answer: record side effects
before it with ``ctx.once``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from os import PathLike
from time import sleep
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    cast,
    overload,
)

import msgspec

from milecastle.engine.pauses import Paused
from milecastle.engine.remembering import TaskMemory
from milecastle.errors import InvalidAnswer, InvalidRequest, TimedOut
from milecastle.graph.schema import StateSchema
from milecastle.graph.structure import Node
from milecastle.model.checkpoint import to_datetime
from milecastle.model.children import ChildResult, child_topic
from milecastle.model.file import File
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey, own_name
from milecastle.model.message import Message, check_topic
from milecastle.model.task import Origin, RunFacts, RunTask
from milecastle.ports.buckets import MOST, Turn, check_amount, check_bucket, marks_of
from milecastle.ports.files import FileReader
from milecastle.ports.mailbox import Sent
from milecastle.ports.task import MISSING, Draw, NewChild, TaskPort
from milecastle.support.migration_hints import refuse_attribute

T = TypeVar("T")
D = TypeVar("D")

_LAST_YEAR: Final = 8999
"""Sums of times are still dates."""

_LONGEST: Final = 3_153_600_000.0
"""The longest deadline, in seconds: a hundred years."""


_WAITS_HERE: Final = 1.0
"""A turn that comes in less than so many seconds is waited for by the process."""


class FlowQuestions(Protocol):
    def ask(
        self,
        question: Any,
        show: Any,
        answer: Any,
        within: timedelta | float | None,
        otherwise: Any,
    ) -> Any: ...


OnCancel = Literal["cancel", "leave"]

Around = Callable[[RunTask], AbstractContextManager[None]]


class _Receipt(NamedTuple):
    label: str
    topics: tuple[str, ...]
    is_one: bool
    until: int | None
    is_over: bool

    def otherwise(self, default: Any, node: str) -> Any:
        if default is MISSING:
            what = f"no message of topic {', '.join(map(repr, self.topics))}"
            raise TimedOut(node=node, deadline=to_datetime(self.until or 0), what=what)
        return default


class Context(msgspec.Struct, kw_only=True, eq=False):
    """Injected into a node with a parameter named ``ctx``.

    ``origin`` says where the state the node received came from. ``thread`` is ``None`` without a
    store. ``attempt`` counts from 1. ``failures`` tells an ``on_error`` node the failed nodes, or
    the items of a fan-out (``work#0``), each with the type and the message of its error. ``call``
    is the id of a flow's call, in a step.
    """

    run_id: str
    node: str
    task: str
    step: int
    thread: ThreadKey | None
    config: Any
    attempt: int
    origin: Origin
    failures: Mapping[str, Any]
    data: RunTask
    _began: str
    port: TaskPort
    _questions: int = 0
    _sleeps: int = 0
    _receives: int = 0
    _sends: int = 0
    _spawns: int = 0
    _draws: int = 0
    _waited: bool = False
    beat: float = 0.0
    over: bool = False
    call: str = ""
    flow: FlowQuestions | None = None
    counts: dict[str, int] = msgspec.field(default_factory=dict[str, int])

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this task, and different for every other.

        Pass it to a service supporting idempotency keys.
        """
        from hashlib import sha256

        where = (self.thread.tenant, self.thread.thread) if self.thread else (self.run_id, "")
        components = (*where, self._began, str(self.step), self.task)
        text = "".join(f"{len(part)}:{part}" for part in components)
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def once(self, name: str, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call ``function`` and record its result; once it is recorded, return that instead.

        Not repeated by a retry, by a resume after an interrupt, or by a takeover. The name is
        unique within the task: use a different one for each side effect.
        """
        self._refuse_in_flow("step(function, ...)")
        found = self.port.recorded(self.data, name)
        if found is not MISSING:
            return cast("T", found)
        with _record():
            value = function(*args, **named)
        if hasattr(value, "__await__"):
            cast("Any", value).close()
            raise InvalidRequest(f"'{name}' is async: write await ctx.aonce({name!r}, ...)")
        self._refuse_if_over()
        self.port.record(self.data, name, value)
        return value

    @overload
    async def aonce(
        self, name: str, function: Callable[..., Awaitable[T]], *args: Any, **named: Any
    ) -> T: ...
    @overload
    async def aonce(self, name: str, function: Callable[..., T], *args: Any, **named: Any) -> T: ...
    async def aonce(self, name: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Async version of ``once``; ``function`` may be async or not."""
        self._refuse_in_flow("step(function, ...)")
        found = self.port.recorded(self.data, name)
        if found is not MISSING:
            return found
        with _record():
            value: Any = function(*args, **named)
            if hasattr(value, "__await__"):
                value = await value
        self._refuse_if_over()
        await self.port.arecord(self.data, name, value)
        return value

    def transaction(self, name: str, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """``once``, exactly: the function's writes and its record are committed together.

        On PostgreSQL. ``function`` is called with a store connection as its first argument, inside
        a transaction: its rows and the record are committed together, or neither is.
        """
        self._refuse_in_flow("step(function, ...)")
        found = self.port.recorded(self.data, name)
        if found is not MISSING:
            return cast("T", found)

        def call(connection: Any) -> T:
            with _record():
                value = function(connection, *args, **named)
            self._refuse_if_over()  # another attempt may have begun
            return value

        return cast("T", self.port.transact(self.data, name, call))

    def file(self, path: str | PathLike[str]) -> File:
        """Store a local file in object storage; the returned ``File`` goes into the state.

        The content is stored once for each tenant, however many threads name it. It is durable when
        this returns, and stays as long as a checkpoint names it. In an async node: ``await afile``.
        """
        self._refuse_if_over()
        return self.port.files(self.data).store(path)

    async def afile(self, path: str | PathLike[str]) -> File:
        """Async version of ``file``."""
        self._refuse_if_over()
        return await self.port.files(self.data).astore(path)

    def open_file(self, file: File) -> FileReader:
        """Open a stored file for reading, as ``open(path, "rb")`` does, without loading it.

        In an async node read with ``await reader.aread(n)`` or ``async for`` over ``achunks()``.
        """
        self._refuse_if_over()
        return self.port.files(self.data).open(file)

    def emit(self, value: Any, *, keep: bool = False) -> None:
        """Emit a value to the stream's reader. In an async node prefer ``await aemit``.

        With ``keep`` it is also stored until the step ends, for readers that come later or again:
        see ``App.emitted``. A crash loses at most the last 50 milliseconds of it.
        """
        self._refuse_if_over()
        self.port.emit(self.data, value, keep)

    async def aemit(self, value: Any, *, keep: bool = False) -> None:
        """Async version of ``emit``: waits for the reader."""
        self._refuse_if_over()
        await self.port.aemit(self.data, value, keep)

    def heartbeat(self) -> None:
        """Reset the idle timer of ``Timeout(idle=...)``."""
        from time import monotonic

        self._refuse_if_over()
        self.port.heartbeat(self.data)
        self.beat = monotonic()

    def sleep(self, until: datetime | timedelta | float) -> None:
        """Pause the run until a time, or for a duration; no process is needed while it sleeps.

        The run ends with the status ``sleeping``. When it is resumed the node runs again from its
        beginning, and this call returns.
        """
        self._refuse_in_flow("sleep(...)")
        label, self._sleeps = f"{self.task}/~{self._sleeps}", self._sleeps + 1
        moment, seconds = read_time(until, "ctx.sleep()")
        wake_at = self.port.wake_time(label, moment, seconds)
        if wake_at is not None:
            raise Paused(label, until=wake_at)

    @overload
    def receive(
        self, topic: str, type: type[T], *, timeout: float | timedelta | None = ...
    ) -> T: ...
    @overload
    def receive(
        self, topic: str, type: type[T], *, timeout: float | timedelta | None = ..., default: D
    ) -> T | D: ...
    @overload
    def receive(
        self,
        topic: str = ...,
        type: Any = ...,
        *,
        timeout: float | timedelta | None = ...,
        default: Any = ...,
    ) -> Any: ...
    @overload
    def receive(
        self,
        topic: tuple[str, ...] | list[str],
        type: Any = ...,
        *,
        timeout: float | timedelta | None = ...,
    ) -> Message: ...
    @overload
    def receive(
        self,
        topic: tuple[str, ...] | list[str],
        type: Any = ...,
        *,
        timeout: float | timedelta | None = ...,
        default: D,
    ) -> Message | D: ...
    def receive(
        self,
        topic: str | Sequence[str] = "",
        type: Any = None,
        *,
        timeout: float | timedelta | None = None,
        default: Any = MISSING,
    ) -> Any:
        """The next message's value in a topic; with several topics, the ``Message``.

        Without one the run stops, with the status ``sleeping``, and no process is needed until it
        comes. Then the node runs again from its beginning, and receives the same messages again,
        in the same order: its step's commit consumes them. With ``timeout``, in
        seconds from the node's first arrival here, ``default`` is returned if none has come by
        then, or ``TimedOut`` raised. ``type`` converts plain data and refuses other values;
        the message then stays unread.
        """
        wait = self._wait_for(topic, timeout)
        if wait.is_over:
            return wait.otherwise(default, self.node)
        return self._delivered(wait, self.port.receive(self.data, wait.topics), type)

    async def areceive(
        self,
        topic: str | Sequence[str] = "",
        type: Any = None,
        *,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - it outlives the process
        default: Any = MISSING,
    ) -> Any:
        """Async version of ``receive``."""
        wait = self._wait_for(topic, timeout)
        if wait.is_over:
            return wait.otherwise(default, self.node)
        return self._delivered(wait, await self.port.areceive(self.data, wait.topics), type)

    def _wait_for(self, topic: str | Sequence[str], timeout: float | timedelta | None) -> _Receipt:
        topics = (topic,) if isinstance(topic, str) else tuple(topic)
        if not topics:
            raise InvalidRequest("ctx.receive() needs a topic")
        for name in topics:
            check_topic(name)
        return self._wait(topics, isinstance(topic, str), timeout)

    def _wait(
        self, topics: tuple[str, ...], is_one: bool, timeout: float | timedelta | None
    ) -> _Receipt:
        self._refuse_in_flow("receive(...) and join(...)")
        if self.data.run.path:
            raise InvalidRequest(
                f"node '{self.node}' is in a subgraph, and messages are sent to the thread of the "
                "whole graph: receive them in a node of that, and pass them in the state"
            )
        label, self._receives = f"{self.task}/@{self._receives}", self._receives + 1
        seconds = seconds_of(timeout, "timeout=")
        until, is_over = None, False
        if seconds is not None:
            until, is_over = self.port.deadline(label, seconds)
        return _Receipt(label, topics, is_one, until, is_over)

    def _delivered(self, wait: _Receipt, found: Message | None, wanted: Any) -> Any:
        if found is None:
            topics = tuple((topic, 0) for topic in wait.topics)  # the run fills in the numbers
            raise Paused(wait.label, until=wait.until, topics=topics)
        value = found.value
        if wanted is not None:
            from milecastle.codec.answers import read_message

            what = f"message {found.number}, of topic {found.topic!r},"
            value = read_message(value, wanted, what)
        return value if wait.is_one else msgspec.structs.replace(found, value=value)

    def send(self, thread: str, value: Any, topic: str = "") -> Sent:
        """Send a message to another thread in this graph and tenant, as ``app.send`` does.

        A node that runs again sends it once: its key is derived from the task and the order of its
        ``send`` calls.
        """
        return self.port.send(self.data, thread, value, topic, self._name_of_send())

    async def asend(self, thread: str, value: Any, topic: str = "") -> Sent:
        """Async version of ``send``."""
        return await self.port.asend(self.data, thread, value, topic, self._name_of_send())

    def _name_of_send(self) -> str:
        self._refuse_if_over()
        number, self._sends = self._sends, self._sends + 1
        return f"{self.idempotency_key}/{number}"

    def spawn(
        self,
        app: Any,
        input: Any,
        thread: str | None = None,
        *,
        config: Any = None,
        on_cancel: OnCancel = "cancel",
    ) -> str:
        """Start a run on another thread, by workers; return that thread's name.

        ``app`` has the same store, or is the name of a graph this worker serves. A node that runs
        again finds the run it started. If this thread's run is cancelled, so is the child's, unless
        ``on_cancel`` is ``"leave"``. Wait for its end with ``join``.
        """
        threads = [thread] if thread else None
        return self.spawn_many(app, [input], threads, config=config, on_cancel=on_cancel)[0]

    async def aspawn(
        self,
        app: Any,
        input: Any,
        thread: str | None = None,
        *,
        config: Any = None,
        on_cancel: OnCancel = "cancel",
    ) -> str:
        """Async version of ``spawn``."""
        threads = [thread] if thread else None
        found = await self.aspawn_many(app, [input], threads, config=config, on_cancel=on_cancel)
        return found[0]

    def spawn_many(
        self,
        app: Any,
        inputs: Sequence[Any],
        threads: Sequence[str] | None = None,
        *,
        config: Any = None,
        on_cancel: OnCancel = "cancel",
    ) -> list[str]:
        """``spawn`` for many inputs, many per commit; return their threads in order."""
        children = self._children(inputs, threads, config, on_cancel)
        self.port.spawn(self.data, app, children)
        return [child.thread for child in children]

    async def aspawn_many(
        self,
        app: Any,
        inputs: Sequence[Any],
        threads: Sequence[str] | None = None,
        *,
        config: Any = None,
        on_cancel: OnCancel = "cancel",
    ) -> list[str]:
        """Async version of ``spawn_many``."""
        children = self._children(inputs, threads, config, on_cancel)
        await self.port.aspawn(self.data, app, children)
        return [child.thread for child in children]

    def _children(
        self, inputs: Sequence[Any], threads: Sequence[str] | None, config: Any, on_cancel: OnCancel
    ) -> list[NewChild]:
        self._refuse_in_flow("spawn(...)")
        if self.data.run.path:
            raise InvalidRequest(
                f"node '{self.node}' is in a subgraph, and children belong to the thread of the "
                "whole graph: spawn and join them in a node of that"
            )
        if on_cancel not in ("cancel", "leave"):
            raise InvalidRequest("on_cancel= takes 'cancel' or 'leave'")
        if threads is not None and len({*threads}) != len(inputs):
            raise InvalidRequest("ctx.spawn_many() needs one thread for each input, all different")
        own, key = self.thread.thread if self.thread else "", self.idempotency_key
        root = own.removeprefix(own_name("child", ""))[:40]
        found: list[NewChild] = []
        for place, input in enumerate(inputs):
            number, self._spawns = self._spawns, self._spawns + 1
            name = own_name("child", f"{root}/{self.task[:20]}.{number}-{key[:16]}")
            thread, call = threads[place] if threads else name, f"{key}/{number}"
            stays = on_cancel == "leave"
            found.append(NewChild(thread, input, config, call, stays, threads is None))
        return found

    def join(self, child: str, *, timeout: float | timedelta | None = None) -> ChildResult:
        """Wait until a spawned thread's run ends: completed, failed for good, or cancelled.

        Like ``receive``: the run stops without a process, and the node runs again from its
        beginning. Each end can be joined by one step. ``TimedOut`` after ``timeout``.
        """
        wait = self._wait((child_topic(child),), True, timeout)
        found = None if wait.is_over else self.port.receive(self.data, wait.topics)
        return self._joined(wait, child, found)

    async def ajoin(
        self,
        child: str,
        *,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - it outlives the process
    ) -> ChildResult:
        """Async version of ``join``."""
        wait = self._wait((child_topic(child),), True, timeout)
        found = None if wait.is_over else await self.port.areceive(self.data, wait.topics)
        return self._joined(wait, child, found)

    def _joined(self, wait: _Receipt, child: str, found: Message | None) -> ChildResult:
        if wait.is_over:
            deadline, what = to_datetime(wait.until or 0), f"no end of child '{child}'"
            raise TimedOut(node=self.node, deadline=deadline, what=what)
        return ChildResult(thread=child, **self._delivered(wait, found, None))

    @property
    def memory(self) -> TaskMemory:
        """Long-term memory: writes are part of this step's commit.

        It belongs to the tenant, outlives the thread, and is not rewound by a fork.
        """
        return TaskMemory(
            self.port, self.data, self._refuse_in_flow_itself, self._refuse_lost_write
        )

    def _refuse_lost_write(self, how: Mapping[str, Any]) -> None:
        """Refuse a write that would not be made again when the node is repeated."""
        self._refuse_in_flow_itself()
        if _recording.get():
            raise InvalidRequest(
                f"node '{self.node}' writes memory inside ctx.once() or ctx.transaction(), which "
                "a repeated node does not call again: write it outside, with the recorded result"
            )
        if self.call and how.get("if_version") is not None:
            raise InvalidRequest(
                f"a step of flow '{self.node}' cannot use if_version=: only nodes of a graph are "
                "repeated when an item has changed"
            )

    def _refuse_in_flow_itself(self) -> None:
        self._refuse_if_over()
        if self.flow is not None:
            raise InvalidRequest(
                f"flow '{self.node}' is replayed, and memory changes: use it inside a step, whose "
                "commit writes it"
            )

    def take(self, name: str, amount: int = 1) -> None:
        """Take an amount from one of the store's buckets, such as a model's requests or tokens.

        The run waits for its turn, in the order of arrival. For a second or more it stops, with the
        status ``sleeping``, without a process; then the node runs again from its beginning, and
        this call returns. A node that runs again takes once, also when it is retried. In a flow's
        step the process waits. ``InvalidRequest`` if there is no such bucket, or if the amount is
        more than its burst.
        """
        given = self._taking(name, amount)
        turn = self.port.draw(self.data, "take", name, given)
        while wait := self._pause_for(turn):
            sleep(wait)
            turn = self.port.draw(self.data, "take", name, given)

    async def atake(self, name: str, amount: int = 1) -> None:
        """Async version of ``take``."""
        import asyncio

        given = self._taking(name, amount)
        turn = await self.port.adraw(self.data, "take", name, given)
        while wait := self._pause_for(turn):
            await asyncio.sleep(wait)
            turn = await self.port.adraw(self.data, "take", name, given)

    def settle(
        self, name: str, amount: int = 0, *, until: datetime | timedelta | float | None = None
    ) -> None:
        """Correct what was taken: ``used - estimate``, less than 0 to give back.

        ``until`` is a provider's ``retry-after``, as a time, a duration or seconds: no run gets
        anything from the bucket before. A node that runs again settles once.
        """
        for how, given in self._settling(name, amount, until):
            self.port.draw(self.data, how, name, given)

    async def asettle(
        self, name: str, amount: int = 0, *, until: datetime | timedelta | float | None = None
    ) -> None:
        """Async version of ``settle``."""
        for how, given in self._settling(name, amount, until):
            await self.port.adraw(self.data, how, name, given)

    def _taking(self, name: str, amount: int) -> tuple[int, str]:
        check_bucket(name)
        check_amount(amount, 1)
        self._waited = False
        return amount, self._draw(f"take {name}")

    def _settling(
        self, name: str, amount: int, until: datetime | timedelta | float | None
    ) -> list[tuple[Draw, tuple[Any, ...]]]:
        check_bucket(name)
        check_amount(amount, -MOST)
        mark = self._draw(f"settle {name}")
        found: list[tuple[Draw, tuple[Any, ...]]] = [("settle", (amount, mark))] if amount else []
        if until is not None:
            found.append(("hold", read_time(until, "ctx.settle()")))
        return found

    def _draw(self, what: str) -> str:
        from hashlib import sha256

        self._refuse_if_over()
        if self.flow is not None:
            raise InvalidRequest(
                f"flow '{self.node}' is replayed, and buckets change: take inside a step"
            )
        number, self._draws = self._draws, self._draws + 1
        text = f"{self.idempotency_key}/{number} {what}"
        own = marks_of(self.thread) if self.thread else ""
        return own + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _pause_for(self, turn: Turn | None) -> float:
        self._refuse_if_over()
        if turn is None or not turn.wait:
            return 0.0
        if self.call:
            return min(turn.wait, _WAITS_HERE)
        if turn.wait < _WAITS_HERE and not self._waited:
            self._waited = True
            return turn.wait
        raise Paused(f"{self.task}/%{self._draws - 1}", until=turn.ready_at)

    def count(self, name: str) -> int:
        """Number of earlier calls with this name, in this attempt.

        Distinguishes calls with the same name: ``ctx.once(f"mail {ctx.count('mail')}", ...)``.
        """
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        return number

    def ask(
        self,
        question: Any,
        show: Any,
        answer: Any,
        within: timedelta | float | None = None,
        otherwise: Any = MISSING,
    ) -> Any:
        """Implementation of ``interrupt()``."""
        from milecastle.codec.answers import as_plain, deliver, schema_of

        if self.flow is not None:
            return self.flow.ask(question, show, answer, within, otherwise)
        self._refuse_in_flow("interrupt(...)")
        number, self._questions = self._questions, self._questions + 1
        found = Interrupt(
            id=f"{self.task}/{number}",
            node=self.node,
            question=as_plain(question),
            show=as_plain(show),
            answer=schema_of(answer),
            asks=True,
        )
        given = self.port.answer(found.id)
        if given is not MISSING:
            try:
                return deliver(given, answer)
            except InvalidAnswer as error:
                found = msgspec.structs.replace(found, refused=error.message)
        until, has_passed = self.port.deadline(found.id, seconds_of(within, "within="))
        if until is None or not has_passed:
            raise Paused(found.id, found, until)
        if otherwise is MISSING:
            raise TimedOut(node=self.node, deadline=to_datetime(until))
        return otherwise

    def _refuse_in_flow(self, instead: str) -> None:
        self._refuse_if_over()
        if self.flow is not None or self.call:
            raise InvalidRequest(
                f"flow '{self.node}' records its own calls: use {instead} in the flow itself, "
                "not inside a step"
            )

    def _refuse_if_over(self) -> None:
        if self.over:
            raise InvalidRequest(
                f"node '{self.node}' is over (it timed out or was cancelled), but its code is "
                "still running: nothing more is recorded for it"
            )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            refuse_attribute("Context", name)


_recording: ContextVar[bool] = ContextVar("milecastle_recording", default=False)
"""True in a function whose result is recorded, and which is not called again."""


@contextmanager
def _record() -> Generator[None, None, None]:
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


class RunResources:
    """An executor's resources for one run's tasks: port, nodes, and the state's constructor.

    ``around`` returns the context manager around a node, if any.
    """

    __slots__ = ("_called", "around", "nodes", "port", "present")

    def __init__(
        self,
        port: TaskPort,
        nodes: Mapping[str, Node],
        schema: StateSchema,
        around: Around | None = None,
    ) -> None:
        self.port = port
        self.around = around
        self.nodes = nodes
        self.present: Callable[[dict[str, Any]], Any]
        self.present = dict if schema.form == "typed-dict" else schema.present
        self._called: RunningTask | None = None

    def called(self, task: RunTask) -> RunningTask:
        if self._called is None or self._called.task is not task:
            self._called = RunningTask(task, self, self.nodes[task.node])
        return self._called


class RunningTask(msgspec.Struct, eq=False):
    task: RunTask
    place: RunResources
    node: Node
    made: Context | None = None
    over: bool = False

    @property
    def context(self) -> Context:
        if self.made is None:
            task, run, port = self.task, self.task.run, self.place.port
            facts = task.facts or port.facts(task)
            self.made = Context(
                run_id=run.run_id,
                node=task.node,
                task=task.id,
                step=task.step,
                thread=run.thread,
                config=run.config,
                attempt=task.attempt,
                origin=facts.origin,
                failures=facts.failures,
                data=task,
                _began=facts.began,
                port=port,
                over=self.over,
                call=task.call,
            )
        return self.made

    def end(self) -> None:
        self.over = True
        if self.made is not None:
            self.made.over = True


current_task: ContextVar[RunTask | RunningTask | None]
current_task = ContextVar("milecastle_task", default=None)
"""The task that this code is part of. Executors set it before they call a node.

What is called most is called with the least: a task alone, whose place is in ``places``.
"""

places: Final[dict[RunFacts, RunResources]] = {}
"""The runs that executors of this process have tasks of, while they do."""


def running_task() -> RunningTask | None:
    found = current_task.get()
    if isinstance(found, RunTask):
        place = places.get(found.run)
        found = None if place is None else place.called(found)
    return found if found is not None and found.place.port.is_running(found.task) else None


def current() -> Context:
    """The calling node's context, for code that does not receive ``ctx``.

    Works in sync and async nodes, in fan-out threads and in subgraphs, and in functions
    they call. ``InvalidRequest`` outside a node, and after it.
    """
    running = running_task()
    if running is None:
        raise InvalidRequest(
            "current() gives the context of a node that runs in a graph; no node runs here"
        )
    return running.context


def read_time(until: datetime | timedelta | float, name: str) -> tuple[int | None, float]:
    """A time in microseconds since 1970, or ``None`` and seconds from now."""
    if not isinstance(until, datetime):
        return None, seconds_of(until, name, least=-_LONGEST) or 0.0
    if until.tzinfo is None:
        raise InvalidRequest(f"{name} takes a datetime with a time zone")
    if until.year > _LAST_YEAR:
        raise InvalidRequest(f"{name} takes a time before the year {_LAST_YEAR + 1}")
    since = until.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1), 0.0


def seconds_of(given: Any, name: str, least: float = 0.0) -> float | None:
    if given is None:
        return None
    seconds: float = given.total_seconds() if isinstance(given, timedelta) else given
    if not (isinstance(given, timedelta | int | float) and least <= seconds <= _LONGEST):
        raise InvalidRequest(
            f"{name} takes a time from now, in seconds or as timedelta, not {given}"
        )
    return seconds


@overload
def interrupt(
    question: Any, *, show: Any = ..., answer: type[T], within: timedelta | float | None = ...
) -> T: ...
@overload
def interrupt(
    question: Any, *, show: Any = ..., answer: type[T], within: timedelta | float, otherwise: D
) -> T | D: ...
@overload
def interrupt(
    question: Any,
    *,
    show: Any = ...,
    answer: Any = ...,
    within: timedelta | float | None = ...,
    otherwise: Any = ...,
) -> Any: ...
def interrupt(
    question: Any,
    *,
    show: Any = None,
    answer: Any = None,
    within: timedelta | float | None = None,
    otherwise: Any = MISSING,
) -> Any:
    """Ask a person. The run waits for as long as it takes and continues with the answer.

    ``show`` is plain data the person should see. ``answer`` is the answer's type: an
    invalid answer is refused, and the thread is unchanged. ``within`` is the deadline, in seconds
    or as a ``timedelta``, from when the question was first asked. If it passes without an answer,
    this call returns ``otherwise``, or raises ``TimedOut`` without one: an answer that comes later
    is refused.

    The node ends here and runs again from its beginning when it is answered; then this call returns
    the answer. Several questions in one node are identified by their order. Record before you ask
    (``ctx.once``), and act after.
    """
    running = running_task()
    if running is None:
        raise InvalidRequest("interrupt() must be called inside a node of a running graph")
    return running.context.ask(question, show, answer, within, otherwise)
