"""The far side: runs tasks where they were sent, and asks their run by messages.

Rules:

- Tasks run one after another, in the order in which they came.
- Every question to the run is a message, and the task waits for the reply.
- When the near side is gone, nobody waits: the task running is given a moment, then the process
  ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import msgspec.msgpack

from milecastle.compute.finding import Reference, find_graph
from milecastle.compute.messages import (
    Ask,
    AskReply,
    Began,
    Cancel,
    Done,
    EndProcess,
    Enter,
    Forget,
    FromTasks,
    GraphValues,
    Raised,
    Ready,
    ReturnTasks,
    SharedValues,
    TaskSent,
    TasksReturned,
    decode_to_tasks,
    encode,
    facts_of,
    pack_raised,
    subgraph_at,
    unpack_raised,
)
from milecastle.engine.applying import pack, read_outcome
from milecastle.engine.context import RunningTask, RunResources, current_task
from milecastle.errors import InvalidRequest, MilecastleError
from milecastle.graph.structure import CompiledGraph
from milecastle.model.file import FilePlace
from milecastle.model.message import Message
from milecastle.model.task import RunFacts, RunTask, TaskFacts
from milecastle.ports.buckets import Turn
from milecastle.ports.files import PlacedFiles
from milecastle.ports.mailbox import Sent
from milecastle.ports.task import MISSING, Draw, NewChild

if TYPE_CHECKING:
    import asyncio

GRACE: Final = 1.0
"""Seconds that a task has to stop when it is cancelled, before its process is ended."""

AskRun = Callable[[int, str, bytes], AskReply]
"""Asks the run of a task, named by its ticket: which method, with which arguments."""


class FarPort:
    """A run's ``TaskPort`` by messages. Its tasks run one at a time."""

    def __init__(self, values: GraphValues, ask: AskRun) -> None:
        self._values = values
        self._ask_run = ask
        self.ticket = 0
        self.open = False

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._answer(self._ask_run(self.ticket, name, self._values.pack_one([*arguments])))

    async def _aask(self, name: str, *arguments: Any) -> Any:
        from milecastle.support.off_loop import off_loop

        body = self._values.pack_one([*arguments])
        return self._answer(await off_loop(self._ask_run, self.ticket, name, body))

    def _answer(self, reply: AskReply) -> Any:
        if reply.raised is not None:
            raise unpack_raised(reply.raised, "in the process that drives the run")
        return MISSING if reply.body is None else self._values.unpack_one(reply.body)

    def is_running(self, task: RunTask) -> bool:
        return self.open

    def facts(self, task: RunTask) -> TaskFacts:
        return msgspec.msgpack.decode(self._ask("facts"), type=TaskFacts)

    def recorded(self, task: RunTask, name: str) -> Any:
        return self._ask("recorded", name)

    def record(self, task: RunTask, name: str, value: Any) -> None:
        self._ask("record", name, value)

    async def arecord(self, task: RunTask, name: str, value: Any) -> None:
        await self._aask("record", name, value)

    def transact(self, task: RunTask, name: str, function: Callable[[Any], Any]) -> Any:
        raise InvalidRequest(
            f"ctx.transaction() in node '{task.node}' needs the connection of the process that "
            "drives the run: remove run_on= from the node, or use ctx.once()"
        )

    def files(self, task: RunTask) -> PlacedFiles:
        from milecastle.stores.offloading.files import files_at

        return files_at(msgspec.msgpack.decode(self._ask("files"), type=FilePlace))

    def emit(self, task: RunTask, value: Any, keep: bool = False) -> None:
        self._ask("emit", value, keep)

    async def aemit(self, task: RunTask, value: Any, keep: bool = False) -> None:
        await self._aask("emit", value, keep)

    def heartbeat(self, task: RunTask) -> None:
        self._ask("heartbeat")

    def answer(self, label: str) -> Any:
        return self._ask("answer", label)

    def receive(self, task: RunTask, topics: Sequence[str]) -> Message | None:
        return _message(self._ask("receive", [*topics]))

    async def areceive(self, task: RunTask, topics: Sequence[str]) -> Message | None:
        return _message(await self._aask("receive", [*topics]))

    def send(self, task: RunTask, thread: str, value: Any, topic: str, name: str) -> Sent:
        return Sent(**self._ask("send", thread, value, topic, name))

    async def asend(self, task: RunTask, thread: str, value: Any, topic: str, name: str) -> Sent:
        return Sent(**await self._aask("send", thread, value, topic, name))

    def spawn(self, task: RunTask, app: Any, children: Sequence[NewChild]) -> None:
        self._ask("spawn", _graph_name(app), [[*child] for child in children])

    async def aspawn(self, task: RunTask, app: Any, children: Sequence[NewChild]) -> None:
        await self._aask("spawn", _graph_name(app), [[*child] for child in children])

    def remember(self, task: RunTask, write: str, how: Mapping[str, Any]) -> None:
        self._refuse_memory(task)

    async def aremember(self, task: RunTask, write: str, how: Mapping[str, Any]) -> None:
        self._refuse_memory(task)

    def recall(self, task: RunTask, read: str, how: Mapping[str, Any]) -> Any:
        self._refuse_memory(task)

    async def arecall(self, task: RunTask, read: str, how: Mapping[str, Any]) -> Any:
        self._refuse_memory(task)

    def draw(self, task: RunTask, how: Draw, name: str, given: Sequence[Any]) -> Turn | None:
        found = self._ask("draw", how, name, [*given])
        return None if found is None else Turn(*found)

    async def adraw(self, task: RunTask, how: Draw, name: str, given: Sequence[Any]) -> Turn | None:
        found = await self._aask("draw", how, name, [*given])
        return None if found is None else Turn(*found)

    def _refuse_memory(self, task: RunTask) -> NoReturn:
        raise InvalidRequest(
            f"ctx.memory in node '{task.node}' needs the process that drives the run: remove "
            "run_on= from the node, or use memory in a node before and after it"
        )

    def deadline(self, label: str, seconds: float | None) -> tuple[int | None, bool]:
        until, has_passed = self._ask("deadline", label, seconds)
        return until, has_passed

    def wake_time(self, label: str, until: int | None, seconds: float) -> int | None:
        found: int | None = self._ask("wake_time", label, until, seconds)
        return found


def _graph_name(app: Any) -> str:
    return app if isinstance(app, str) else app.graph.name


def _message(fields: dict[str, Any] | None) -> Message | None:
    return None if fields is None else Message(**fields)


class _FarRun:
    def __init__(self, graph: CompiledGraph, entered: Enter, ask: AskRun) -> None:
        self.graph = subgraph_at(graph, entered.path)
        self.values = GraphValues(self.graph, graph)
        self.facts: RunFacts = facts_of(entered, self.values)
        self.port = FarPort(self.values, ask)
        self.place = RunResources(self.port, self.graph.nodes, self.graph.schema)
        self.base: dict[str, Any] = {}

    def open(self, work: TaskSent) -> RunningTask:
        state = {**self.base, **self.values.unpack(work.body)}
        for name in work.without:
            state.pop(name, None)
        task = RunTask(
            self.facts,
            work.node,
            state,
            work.id,
            work.step,
            work.attempt,
            work.facts,
            work.call,
        )
        return RunningTask(task, self.place, self.graph.nodes[work.node])


class FarTasks:
    """Runs tasks, one at a time. ``cancel`` may be called from another thread.

    ``tell`` is called when a task with a timeout starts: loading its graph does not count.
    """

    def __init__(self, ask: AskRun, tell: Callable[[Began], None]) -> None:
        self._ask = ask
        self._tell = tell
        self._graphs: dict[tuple[Reference, str], CompiledGraph] = {}
        self._entered: dict[int, Enter] = {}
        self._runs: dict[int, _FarRun] = {}
        self._bases: dict[int, bytes] = {}
        self._cancelled: set[int] = set()
        self._running: tuple[int, RunningTask] | None = None
        self._runner: asyncio.Runner | None = None
        self._awaiting: asyncio.Task[Any] | None = None

    def take(self, message: Enter | SharedValues | Forget) -> None:
        if isinstance(message, Enter):
            self._entered[message.run] = message
        elif isinstance(message, SharedValues):
            self._bases[message.run] = message.body
        else:
            for known in (self._entered, self._bases, self._runs):
                known.pop(message.run, None)

    def perform(self, work: TaskSent) -> Done:
        if work.ticket in self._cancelled:
            self._cancelled.discard(work.ticket)
            return Done(work.ticket)
        try:
            run = self._enter(work.run)
            running = run.open(work)
        except Exception as error:  # the user's module, or a state that it cannot make
            return Done(work.ticket, None, _unfit(error), refused=True)
        if running.node.policy.timeout is not None:
            self._tell(Began(work.ticket))
        began = perf_counter()
        try:
            returned = self._call(work.ticket, run, running)
        except BaseException as error:
            return Done(work.ticket, None, pack_raised(error), seconds=perf_counter() - began)
        try:
            found = read_outcome(run.graph, work.node, returned, running.task.state)
            body = run.values.pack(pack(found), node=work.node)
        except MilecastleError as error:
            return Done(work.ticket, None, pack_raised(error), refused=True)
        return Done(work.ticket, body, seconds=perf_counter() - began)

    def _enter(self, number: int) -> _FarRun:
        run = self._runs.get(number)
        if run is None:
            entered = self._entered[number]
            key = entered.reference, entered.fingerprint
            graph = self._graphs.get(key)
            if graph is None:
                graph = self._graphs[key] = find_graph(*key)
            run = self._runs[number] = _FarRun(graph, entered, self._ask)
        body = self._bases.pop(number, None)
        if body is not None:
            run.base = run.values.unpack(body)
        return run

    def _call(self, ticket: int, run: _FarRun, running: RunningTask) -> Any:
        node, task = running.node, running.task
        run.port.ticket, run.port.open = ticket, True
        self._running = ticket, running
        current_task.set(running)
        try:
            context = running.context if node.wants_context else None
            returned = node.call(run.place.present(task.state), task.run.config, context)
            return self._await(returned) if node.is_async else returned
        finally:
            self._running = None
            run.port.open = False
            running.end()
            current_task.set(None)

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        import asyncio

        if self._runner is None:
            self._runner = asyncio.Runner()
        loop = self._runner.get_loop()
        self._awaiting = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(self._awaiting)
        finally:
            self._awaiting = None

    def cancel(self, ticket: int) -> None:
        """Stop a task: an async one is cancelled; a sync one can record nothing more."""
        running, awaiting = self._running, self._awaiting
        if running is None or running[0] != ticket:
            self._cancelled.add(ticket)
            return
        running[1].end()
        if awaiting is not None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                awaiting.get_loop().call_soon_threadsafe(awaiting.cancel)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


def _unfit(error: Exception) -> Raised:
    if isinstance(error, InvalidRequest):
        return pack_raised(error)
    said = f"{type(error).__name__}: {error}" if isinstance(error, ImportError) else ""
    shown = said or type(error).__name__
    refused = InvalidRequest(
        f"the process that should run this node could not import its graph ({shown})"
    )
    return pack_raised(refused.with_traceback(error.__traceback__))


class Pipe(Protocol):
    def send_bytes(self, data: bytes, /) -> None: ...

    def recv_bytes(self) -> bytes:
        """Receive one frame; ``EOFError`` if the other end is gone."""
        ...


class Server:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._todo: SimpleQueue[Enter | SharedValues | Forget | TaskSent | None] = SimpleQueue()
        self._sending = threading.Lock()
        self._numbers = count(1)
        self._asked: dict[int, SimpleQueue[AskReply]] = {}
        self._unstarted: set[int] = set()  # whoever removes a ticket decides what becomes of it
        self._tasks = FarTasks(self._ask, self._send)

    def serve(self, end: Callable[[], None]) -> None:
        """Run tasks until the client is gone; ``end`` is called if one still runs."""
        threading.Thread(target=self._read, args=(end,), daemon=True).start()
        self._send(Ready())
        while (message := self._todo.get()) is not None:
            if not isinstance(message, TaskSent):
                self._tasks.take(message)
            elif self._remove(message.ticket):
                self._send(self._tasks.perform(message))
        self._tasks.close()

    def _remove(self, ticket: int) -> bool:
        try:
            self._unstarted.remove(ticket)
        except KeyError:
            return False
        return True

    def _send(self, message: FromTasks) -> None:
        with self._sending:
            self._write(message)

    def _write(self, message: FromTasks) -> None:
        with suppress(OSError):  # the near side is gone: the reader notices
            self._pipe.send_bytes(encode([message]))

    def _ask(self, ticket: int, name: str, arguments: bytes) -> AskReply:
        number, answered = next(self._numbers), SimpleQueue[AskReply]()
        self._asked[number] = answered
        self._send(Ask(number, ticket, name, arguments))
        return answered.get()

    def _read(self, end: Callable[[], None]) -> None:
        with suppress(EOFError, OSError):
            while True:
                for message in decode_to_tasks(self._pipe.recv_bytes()):
                    if isinstance(message, EndProcess):
                        raise EOFError
                    self._receive(message)
        self._todo.put(None)
        for answered in self._asked.values():
            gone = InvalidRequest("the process that drives the run is gone")
            answered.put(AskReply(0, None, pack_raised(gone)))
        sleep(GRACE)
        end()

    def _receive(
        self, message: Enter | SharedValues | Forget | TaskSent | AskReply | Cancel | ReturnTasks
    ) -> None:
        if isinstance(message, AskReply):
            self._asked.pop(message.number).put(message)
        elif isinstance(message, Cancel):
            self._tasks.cancel(message.ticket)
        elif isinstance(message, ReturnTasks):
            with self._sending:
                unstarted = tuple(filter(self._remove, message.tickets))
                self._write(TasksReturned(unstarted))
        else:
            if isinstance(message, TaskSent):
                self._unstarted.add(message.ticket)
            self._todo.put(message)


def serve(pipe: Pipe) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that drives the run decides
    Server(pipe).serve(lambda: os._exit(1))
