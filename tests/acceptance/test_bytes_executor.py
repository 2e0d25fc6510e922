"""A whole graph through an executor that sends every task and every outcome as bytes.

What a task asks of its run is sent as bytes too. So another process could receive all of it: the
far side here has its own table of graphs, and sees nothing but what was decoded.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import msgspec.structs
import pytest

from milecastle import (
    END,
    START,
    App,
    Command,
    Context,
    Event,
    ExecutionError,
    Result,
    StateGraph,
    Timeout,
    append,
    interrupt,
)
from milecastle.app.clock import SystemClock
from milecastle.app.threads.log import log_codec_for
from milecastle.codec.deltas import LogCodec
from milecastle.drivers.local import LocalExecutors
from milecastle.engine.applying import pack, read_outcome, unpack
from milecastle.engine.pauses import Paused
from milecastle.errors import NodeTimeout
from milecastle.graph.structure import CompiledGraph
from milecastle.model.message import Message
from milecastle.model.task import Finished, RunFacts, RunTask, TaskFacts
from milecastle.ports.buckets import Turn
from milecastle.ports.executor import EmitEvent, Executor, LoopExecutor
from milecastle.ports.files import PlacedFiles
from milecastle.ports.mailbox import Sent
from milecastle.ports.task import MISSING, Draw, NewChild, TaskPort
from milecastle.records import Interrupt
from milecastle.stores.memory import MemoryStore
from milecastle.testing import with_store
from tests.recovery.everything import INPUT, answer, everything

Ticket = tuple[str, str, int, int]
"""What names a task in a message: its run, its id, its step and the attempt."""


def ticket_of(task: RunTask) -> Ticket:
    return task.run.run_id, task.id, task.step, task.attempt


class Wire:
    """Turns tasks, outcomes and values into bytes and back."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._graph = graph
        self._runs: dict[str, RunFacts] = {}
        self._sent: dict[Ticket, RunTask] = {}
        self.messages = 0

    def graph_of(self, run: RunFacts) -> CompiledGraph:
        graph = self._graph
        for name in run.path:
            subgraph = graph.nodes[name].subgraph
            assert subgraph is not None
            graph = subgraph.graph
        return graph

    def _codec(self, run: RunFacts) -> LogCodec:
        return log_codec_for(self.graph_of(run))

    def send(self, task: RunTask) -> RunTask:
        """A task as the far side receives it."""
        self.messages += 1
        self._sent[ticket_of(task)] = task
        body = self._codec(task.run).encode_state(task.state)
        bare = msgspec.structs.replace(task, state={})
        data = msgspec.msgpack.encode((body, bare))
        body, received = msgspec.msgpack.decode(data, type=tuple[bytes, RunTask])
        run = self._runs.setdefault(received.run.run_id, received.run)
        state = self._codec(run).decode_state(body)
        return msgspec.structs.replace(received, run=run, state=state)

    def original(self, ticket: bytes) -> RunTask:
        return self._sent[msgspec.msgpack.decode(ticket, type=Ticket)]

    def value(self, task: RunTask, value: Any) -> Any:
        self.messages += 1
        codec = self._codec(task.run)
        return codec.decode_state(codec.encode_state({"value": value}))["value"]

    def returned(self, task: RunTask, value: Any) -> Any:
        """What a node returned, as the driver receives it."""
        self.messages += 1
        graph, codec = self.graph_of(task.run), self._codec(task.run)
        found = read_outcome(graph, task.node, value, task.state)
        outcome = unpack(codec.decode_state(codec.encode_state(pack(found))))
        if outcome.goto is None:
            return outcome.update
        command: Command[Any] = Command(update=outcome.update, goto=list(outcome.goto))
        return command

    def raised(self, error: BaseException) -> BaseException:
        """What a node raised, as the driver receives it."""
        self.messages += 1
        if isinstance(error, Paused):
            data = msgspec.msgpack.encode((error.label, error.question, error.until))
            kind = tuple[str, Interrupt | None, int | None]
            return Paused(*msgspec.msgpack.decode(data, type=kind))
        if isinstance(error, NodeTimeout):
            data = msgspec.msgpack.encode((error.node, error.seconds))
            node, seconds = msgspec.msgpack.decode(data, type=tuple[str, float])
            return NodeTimeout(node=node, seconds=seconds)
        data = msgspec.msgpack.encode((type(error).__name__, error.args))
        name, arguments = msgspec.msgpack.decode(data)
        found: BaseException = vars(builtins)[name](*arguments)
        return found


class FarPort:
    """The port to a run on the far side: every call is a message."""

    def __init__(self, wire: Wire, near: TaskPort) -> None:
        self._wire = wire
        self._near = near

    def _task(self, task: RunTask) -> RunTask:
        return self._wire.original(msgspec.msgpack.encode(ticket_of(task)))

    def is_running(self, task: RunTask) -> bool:
        return self._near.is_running(self._task(task))

    def facts(self, task: RunTask) -> TaskFacts:
        found = self._near.facts(self._task(task))
        return msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=TaskFacts)

    def recorded(self, task: RunTask, name: str) -> Any:
        found = self._near.recorded(self._task(task), name)
        return found if found is MISSING else self._wire.value(task, found)

    def record(self, task: RunTask, name: str, value: Any) -> None:
        self._near.record(self._task(task), name, self._wire.value(task, value))

    async def arecord(self, task: RunTask, name: str, value: Any) -> None:
        await self._near.arecord(self._task(task), name, self._wire.value(task, value))

    def transact(self, task: RunTask, name: str, function: Any) -> Any:
        raise AssertionError("a transaction needs a connection on the far side")

    def files(self, task: RunTask) -> PlacedFiles:
        raise AssertionError("files need an object storage on the far side")

    def remember(self, task: RunTask, write: str, how: Mapping[str, Any]) -> None:
        self._near.remember(self._task(task), write, how)

    async def aremember(self, task: RunTask, write: str, how: Mapping[str, Any]) -> None:
        await self._near.aremember(self._task(task), write, how)

    def recall(self, task: RunTask, read: str, how: Mapping[str, Any]) -> Any:
        return self._near.recall(self._task(task), read, how)

    async def arecall(self, task: RunTask, read: str, how: Mapping[str, Any]) -> Any:
        return await self._near.arecall(self._task(task), read, how)

    def receive(self, task: RunTask, topics: Sequence[str]) -> Message | None:
        return self._near.receive(self._task(task), topics)

    async def areceive(self, task: RunTask, topics: Sequence[str]) -> Message | None:
        return await self._near.areceive(self._task(task), topics)

    def send(self, task: RunTask, thread: str, value: Any, topic: str, name: str) -> Sent:
        return self._near.send(self._task(task), thread, self._wire.value(task, value), topic, name)

    async def asend(self, task: RunTask, thread: str, value: Any, topic: str, name: str) -> Sent:
        return await self._near.asend(
            self._task(task), thread, self._wire.value(task, value), topic, name
        )

    def spawn(self, task: RunTask, app: Any, children: Sequence[NewChild]) -> None:
        self._near.spawn(self._task(task), app, children)

    async def aspawn(self, task: RunTask, app: Any, children: Sequence[NewChild]) -> None:
        await self._near.aspawn(self._task(task), app, children)

    def draw(self, task: RunTask, how: Draw, name: str, given: Sequence[Any]) -> Turn | None:
        return self._near.draw(self._task(task), how, name, given)

    async def adraw(self, task: RunTask, how: Draw, name: str, given: Sequence[Any]) -> Turn | None:
        return await self._near.adraw(self._task(task), how, name, given)

    def emit(self, task: RunTask, value: Any, keep: bool = False) -> None:
        self._near.emit(self._task(task), self._wire.value(task, value), keep)

    async def aemit(self, task: RunTask, value: Any, keep: bool = False) -> None:
        await self._near.aemit(self._task(task), self._wire.value(task, value), keep)

    def heartbeat(self, task: RunTask) -> None:
        self._near.heartbeat(self._task(task))

    def answer(self, label: str) -> Any:
        found = self._near.answer(label)
        return found if found is MISSING else msgspec.msgpack.decode(msgspec.msgpack.encode(found))

    def deadline(self, label: str, seconds: float | None) -> tuple[int | None, bool]:
        return self._near.deadline(label, seconds)

    def wake_time(self, label: str, until: int | None, seconds: float) -> int | None:
        return self._near.wake_time(label, until, seconds)


class FarPorts(Mapping[str, TaskPort]):
    def __init__(self, wire: Wire, near: Mapping[str, TaskPort]) -> None:
        self._wire = wire
        self._near = near

    def __getitem__(self, run_id: str) -> TaskPort:
        return FarPort(self._wire, self._near[run_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._near)

    def __len__(self) -> int:
        return len(self._near)


class _Bytes:
    """What both executors have in common: tasks that were sent, and what comes back."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._given: dict[int, tuple[RunTask, RunTask]] = {}

    def _send(self, task: RunTask) -> RunTask:
        sent = self._wire.send(task)
        self._given[id(sent)] = task, sent
        return sent

    def _sent(self, tasks: Sequence[RunTask]) -> list[RunTask]:
        wanted = {id(task) for task in tasks}
        return [sent for task, sent in self._given.values() if id(task) in wanted]

    def _receive(self, item: Finished | Event) -> Finished | Event:
        if isinstance(item, Event):
            return item  # the port has sent what is in it
        task = self._given.pop(id(item.task))[0]
        if item.error is not None:
            return Finished(task, None, self._wire.raised(item.error))
        return Finished(task, self._wire.returned(item.task, item.update))


class BytesExecutor(_Bytes):
    """An ``Executor`` whose tasks run on the far side."""

    def __init__(self, wire: Wire, far: Executor) -> None:
        super().__init__(wire)
        self._far = far

    def call(self, task: RunTask) -> Any:
        sent = self._wire.send(task)
        try:
            returned = self._far.call(sent)
        except BaseException as error:
            raise self._wire.raised(error) from None
        return self._wire.returned(sent, returned)

    def start(self, tasks: Sequence[RunTask]) -> None:
        self._far.start([self._send(task) for task in tasks])

    def wait(self, until: float | None) -> list[Finished | Event]:
        return [self._receive(item) for item in self._far.wait(until)]

    def cancel(self, tasks: Sequence[RunTask]) -> None:
        self._far.cancel(self._sent(tasks))

    def emit(self, event: Event) -> None:
        self._far.emit(event)

    @property
    def can_stop(self) -> bool:
        return self._far.can_stop

    def wake(self) -> None:
        self._far.wake()

    def close(self) -> None:
        self._far.close()


class BytesLoopExecutor(_Bytes):
    """A ``LoopExecutor`` whose tasks run on the far side."""

    def __init__(self, wire: Wire, far: LoopExecutor) -> None:
        super().__init__(wire)
        self._far = far
        self.emitted = far.emitted
        self.take_events = far.take_events
        self.emit = far.emit
        self.wake = far.wake
        self.aemit = far.aemit
        self.close = far.close

    async def call(self, task: RunTask) -> Any:
        sent = self._wire.send(task)
        try:
            returned = await self._far.call(sent)
        except BaseException as error:
            raise self._wire.raised(error) from None
        return self._wire.returned(sent, returned)

    def start(self, tasks: Sequence[RunTask]) -> None:
        self._far.start([self._send(task) for task in tasks])

    async def wait(self, seconds: float | None) -> list[Finished | Event]:
        return [self._receive(item) for item in await self._far.wait(seconds)]

    def cancel(self, tasks: Sequence[RunTask]) -> None:
        self._far.cancel(self._sent(tasks))


class BytesExecutors:
    """Makes executors that send bytes to a local one."""

    def __init__(self, graph: CompiledGraph) -> None:
        self.wire = Wire(graph)
        self._far = LocalExecutors((graph,))

    def on_thread(self, ports: Mapping[str, TaskPort], most: int) -> Executor:
        return BytesExecutor(self.wire, self._far.on_thread(FarPorts(self.wire, ports), most))

    def on_loop(
        self, ports: Mapping[str, TaskPort], most: int, tell: EmitEvent | None
    ) -> LoopExecutor:
        far = self._far.on_loop(FarPorts(self.wire, ports), most, tell)
        return BytesLoopExecutor(self.wire, far)


def by_bytes(app: App[Any]) -> BytesExecutors:
    """Let an app run its tasks through bytes."""
    made = BytesExecutors(app.graph)
    runner = app.runner
    runner.executors = made
    return made


# -- the graph that uses everything -----------------------------------------------------------


class LateClock(SystemClock):
    """A clock that can be put forward."""

    late = 0

    def now(self) -> int:
        return super().now() + self.late


def course(*, through_bytes: bool, is_async: bool, awaited: bool) -> tuple[Any, ...]:
    """Run the graph that uses everything to its end; what can be seen of the course."""
    app, world = everything(delay=0.01, is_async=is_async)
    clock, store = LateClock(), MemoryStore()
    app = with_store(app, store, clock=clock)
    executors = by_bytes(app) if through_bytes else None

    def call(function: Any, awaitable: Any, *args: Any, **named: Any) -> Result[Any]:
        found: Result[Any] = (
            asyncio.run(awaitable(*args, **named)) if awaited else function(*args, **named)
        )
        return found

    seen: list[Any] = []
    result = call(app.invoke, app.ainvoke, INPUT, "t")
    while result.status != "completed":
        seen.append((result.status, [found.question for found in result.interrupts], result.next))
        if result.wake_at is not None:
            clock.late += 9 * timedelta(hours=1) // timedelta(microseconds=1)
        given = {found.id: answer(found) for found in result.interrupts if found.asks}
        result = call(app.resume, app.aresume, "t", answers=given or None)
    if executors is not None:
        assert executors.wire.messages > 50
    sources = [entry.source for entry in app.history("t")]
    return result.state, seen, sources, sorted(world.done.values())


WAYS = pytest.mark.parametrize("way", ["sync", "async functions", "awaited"])


@WAYS
def test_graph_with_every_feature_runs_the_same_through_bytes(way: str) -> None:
    """Seen to fail with a `RunTask` that has the desk in it: it cannot be encoded."""
    ways = {"is_async": way != "sync", "awaited": way == "awaited"}
    assert course(through_bytes=True, **ways) == course(through_bytes=False, **ways)


# -- emitting, heartbeats, timeouts, states of classes -----------------------------------------


@dataclass
class Talk:
    n: int = 0
    heard: Annotated[list[str], append] = field(default_factory=list[str])


def talking() -> App[Talk]:
    def speak(state: Talk, ctx: Context) -> dict[str, Any]:
        ctx.emit({"n": state.n})
        ctx.heartbeat()
        return {"heard": [ctx.idempotency_key[:0] + "spoke"]}

    def change(state: Talk) -> Talk:
        state.n += 1
        return state

    def stall(state: Talk, ctx: Context) -> dict[str, Any]:
        import time

        for _ in range(100):
            time.sleep(0.01)
        return {}

    def cope(state: Talk, ctx: Context) -> dict[str, Any]:
        return {"heard": [f"coped with {sorted(ctx.failures)}"]}

    graph = StateGraph(Talk)
    graph.add_node("speak", speak)
    graph.add_node("change", change)
    graph.add_node("stall", stall, timeout=Timeout(run=0.05), on_error="cope")
    graph.add_node("cope", cope)
    graph.add_edges(START, "speak", "change", "stall", END)
    graph.add_edge("cope", END)
    return graph.compile(store="memory://")


def events_of(app: App[Talk], awaited: bool) -> list[Any]:
    """What a reader sees; of a node that returns a whole state only what it changed is sent."""

    async def read() -> list[Event[Talk]]:
        return [event async for event in app.astream({"n": 0}, "t")]

    events = asyncio.run(read()) if awaited else [*app.stream({"n": 0}, "t")]
    return [
        (event.type, event.node, event.update if event.type == "emit" else None) for event in events
    ]


@pytest.mark.parametrize("awaited", [False, True])
def test_events_and_timeouts_are_the_same_through_bytes(awaited: bool) -> None:
    app = talking()
    by_bytes(app)
    seen = events_of(app, awaited)
    assert ("emit", "speak", {"n": 0}) in seen
    assert seen == events_of(talking(), awaited)
    assert app.state("t").state == Talk(1, ["spoke", "coped with ['stall']"])


# -- what must be found out ---------------------------------------------------------------------


def test_live_object_in_a_task_is_found_out() -> None:
    """The control: a task that is not data cannot be sent."""

    def use(state: Talk, config: Any) -> dict[str, Any]:
        return {"n": config["make"]()}

    graph = StateGraph(Talk)
    graph.add_node("use", use)
    graph.add_edges(START, "use", END)
    app, config = graph.compile(), {"make": lambda: 7}
    assert app.invoke({"n": 0}, config=config).state.n == 7
    by_bytes(app)
    with pytest.raises(ExecutionError, match="failed at step 1 with TypeError"):
        app.invoke({"n": 0}, config=config)


def test_live_object_in_an_outcome_is_found_out() -> None:
    def make(state: Talk) -> dict[str, Any]:
        return {"heard": [interrupt]}

    graph = StateGraph(Talk)
    graph.add_node("make", make)
    graph.add_edges(START, "make", END)
    app = graph.compile()
    app.invoke({"n": 0})
    by_bytes(app)
    with pytest.raises(ExecutionError, match="with UnserializableState"):
        app.invoke({"n": 0})
