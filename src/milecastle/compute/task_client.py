"""The task client: one call's remote tasks as messages, and their outcomes.

Rules:

- GraphValues the tasks of a step share are encoded once, whatever their number.
- An outcome is decoded on the driver's thread, so one slow graph delays no other.
- A task's questions are answered on threads of this call: an answer may wait for a commit or for a
  reader.
- A task that timed out or was cancelled is over at once; its site ends its process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic
from typing import Any, Final, Protocol

import msgspec
import msgspec.msgpack
import msgspec.structs

from milecastle.compute.finding import Reference
from milecastle.compute.messages import (
    Ask,
    AskReply,
    Done,
    Enter,
    GraphValues,
    SharedValues,
    TaskSent,
    pack_raised,
    subgraph_at,
    unpack_raised,
)
from milecastle.engine.applying import unpack
from milecastle.errors import InvalidRequest, MilecastleError, NodeTimeout, ProcessLost
from milecastle.graph.sending import Command
from milecastle.graph.structure import CompiledGraph, Node
from milecastle.model.policies import Timeout
from milecastle.model.task import Finished, RunTask
from milecastle.ports.task import MISSING, NewChild, TaskPort

_THREADS: Final = 8
"""How many questions of tasks are answered at once, in one call."""

_numbers = count(1)


class RemoteTask(msgspec.Struct, eq=False):
    """A task sent elsewhere. Its site sets ``began`` when it starts."""

    task: RunTask
    node: Node
    run: Enter
    base: SharedValues
    work: TaskSent
    call: RemoteTasks
    began: float | None = None
    beat: float = 0.0
    over: bool = False

    def renew(self) -> None:
        self.work = msgspec.structs.replace(self.work, ticket=next(_numbers))


class Site(Protocol):
    """A place where tasks run. Its methods return at once, and may be called from any thread."""

    def submit(self, tasks: Sequence[RemoteTask], /) -> None: ...

    def withdraw(self, tasks: Sequence[RemoteTask], /) -> None:
        """Stop these tasks, which are over; nothing more is reported."""
        ...

    def reply(self, task: RemoteTask, reply: AskReply, /) -> None: ...

    def forget(self, runs: Iterable[int], /) -> None: ...


class _Run(msgspec.Struct, eq=False):
    entered: Enter
    graph: CompiledGraph
    values: GraphValues
    step: int = -1
    shared: dict[str, Any] = {}
    base: SharedValues | None = None


class RemoteTasks:
    """One call's remote tasks. ``wake`` ends the driver's wait, from any thread."""

    def __init__(
        self,
        graph: CompiledGraph,
        ports: Mapping[str, TaskPort],
        find: Callable[[], Reference],
        site_of: Callable[[Any], Site],
        wake: Callable[[], None],
    ) -> None:
        self._graph = graph
        self._ports = ports
        self._find = find
        self._site_of = site_of
        self.wake = wake
        self._runs: dict[str, _Run] = {}
        self._sites: dict[int, Site] = {}
        self._running: dict[int, tuple[RemoteTask, Site]] = {}
        self._timed: dict[int, tuple[RemoteTask, Timeout]] = {}
        self._done: deque[tuple[RemoteTask, Done | Finished]] = deque()
        self._ended: list[Finished] = []
        self._replies: ThreadPoolExecutor | None = None

    # ---- for the driver's thread

    def start(self, tasks: Sequence[RunTask]) -> list[RunTask]:
        here: list[RunTask] = []
        sent: dict[int, tuple[Site, list[RemoteTask]]] = {}
        for task in tasks:
            node = subgraph_at(self._graph, task.run.path).nodes[task.node]
            if node.policy.run_on is None:
                here.append(task)
                continue
            try:
                site = self._site_of(node.policy.run_on)
                remote = self._remote(task, node)
            except MilecastleError as error:
                self._ended.append(Finished(task, None, error, refused=True))
                continue
            self._running[id(task)] = remote, site
            self._sites[id(site)] = site
            if node.policy.timeout is not None:
                self._timed[id(task)] = remote, node.policy.timeout
            sent.setdefault(id(site), (site, []))[1].append(remote)
        for site, remotes in sent.values():
            site.submit(remotes)
        return here

    def _remote(self, task: RunTask, node: Node) -> RemoteTask:
        run = self._enter(task)
        if run.base is None or run.step != task.step:
            run.step, run.shared = task.step, task.state
            number = next(_numbers)
            run.base = SharedValues(run.entered.run, number, run.values.pack(task.state))
        shared = run.shared
        changed = {
            name: value
            for name, value in task.state.items()
            if name not in shared or shared[name] is not value
        }
        without = tuple(name for name in shared if name not in task.state)
        work = TaskSent(
            next(_numbers),
            run.entered.run,
            task.node,
            task.id,
            task.step,
            task.attempt,
            run.values.pack(changed),
            without,
            task.facts,
            task.call,
        )
        return RemoteTask(task, node, run.entered, run.base, work, self)

    def _enter(self, task: RunTask) -> _Run:
        facts = task.run
        run = self._runs.get(facts.run_id)
        if run is None:
            found, graph = self._find(), subgraph_at(self._graph, facts.path)
            values = GraphValues(graph, self._graph)
            entered = Enter(
                next(_numbers),
                found,
                facts.fingerprint,
                facts.path,
                facts.run_id,
                facts.thread,
                values.pack_one(facts.config),
            )
            run = self._runs[facts.run_id] = _Run(entered, graph, values)
        return run

    def take(self) -> list[Finished]:
        while self._done:
            remote, done = self._done.popleft()
            if self._drop(remote):
                self._ended.append(self._finished(remote, done))
        now = monotonic()
        for remote, timeout in [*self._timed.values()] if self._timed else ():
            end, seconds = _end(remote, timeout)
            if end <= now:
                error = NodeTimeout(node=remote.node.name, seconds=seconds)
                self._stop(remote)
                self._ended.append(Finished(remote.task, None, error))
        ended, self._ended = self._ended, []
        return ended

    def _finished(self, remote: RemoteTask, done: Done | Finished) -> Finished:
        if isinstance(done, Finished):
            return done
        if done.raised is not None or done.body is None:
            raised = done.raised or pack_raised(InvalidRequest("the task was cancelled"))
            error = unpack_raised(raised, "where the node runs")
            return Finished(remote.task, None, error, refused=done.refused)
        found = unpack(self._runs[remote.task.run.run_id].values.unpack(done.body))
        if found.goto is None:
            return Finished(remote.task, found.update)
        command: Command[Any] = Command(update=found.update, goto=list(found.goto))
        return Finished(remote.task, command)

    def due(self) -> float | None:
        ends = [_end(*timed)[0] for timed in self._timed.values() if timed[0].began is not None]
        return min(ends, default=None)

    def cancel(self, tasks: Sequence[RunTask]) -> list[RunTask]:
        from asyncio import CancelledError

        here: list[RunTask] = []
        for task in tasks:
            found = self._running.get(id(task))
            if found is None:
                here.append(task)
                continue
            self._stop(found[0])
            self._ended.append(Finished(task, None, CancelledError()))
        if self._ended:
            self.wake()
        return here

    def _stop(self, remote: RemoteTask) -> None:
        site = self._running[id(remote.task)][1]
        self._drop(remote)
        site.withdraw([remote])

    def _drop(self, remote: RemoteTask) -> bool:
        remote.over = True
        self._timed.pop(id(remote.task), None)
        return self._running.pop(id(remote.task), None) is not None

    def close(self) -> None:
        for remote, _ in [*self._running.values()]:
            self._stop(remote)
        runs = [run.entered.run for run in self._runs.values()]
        for site in self._sites.values():
            site.forget(runs)
        if self._replies is not None:
            self._replies.shutdown(wait=False, cancel_futures=True)

    # ---- for the thread of a site

    def finished(self, remote: RemoteTask, done: Done) -> None:
        """A task has ended. The site calls ``wake`` after reporting everything."""
        self._done.append((remote, done))

    def lost(self, remote: RemoteTask, how: str, *, again: bool = True) -> None:
        error = ProcessLost(node=remote.node.name, how=how)
        self._done.append((remote, Finished(remote.task, None, error, refused=not again)))

    def asked(self, remote: RemoteTask, site: Site, ask: Ask) -> None:
        if ask.name == "heartbeat":
            remote.beat = monotonic()
        if self._replies is None:
            self._replies = ThreadPoolExecutor(_THREADS, thread_name_prefix="milecastle-replies")
        try:
            self._replies.submit(self._reply, remote, site, ask)
        except RuntimeError:  # the call is over
            site.reply(remote, AskReply(ask.number, None, pack_raised(_over(remote))))

    def _reply(self, remote: RemoteTask, site: Site, ask: Ask) -> None:
        try:
            body = self._ask(remote, ask)
        except BaseException as error:
            site.reply(remote, AskReply(ask.number, None, pack_raised(error)))
        else:
            site.reply(remote, AskReply(ask.number, body))

    def _ask(self, remote: RemoteTask, ask: Ask) -> bytes | None:
        task = remote.task
        port = self._ports.get(task.run.run_id)
        if remote.over or port is None:
            raise _over(remote)
        values = self._runs[task.run.run_id].values
        arguments = values.unpack_one(ask.arguments)
        found: Any = None
        match ask.name:
            case "facts":
                found = msgspec.msgpack.encode(port.facts(task))
            case "recorded":
                found = port.recorded(task, *arguments)
            case "record":
                port.record(task, *arguments)
            case "files":
                found = msgspec.msgpack.encode(port.files(task).place)
            case "emit":
                port.emit(task, *arguments)
            case "heartbeat":
                port.heartbeat(task)
            case "receive":
                message = port.receive(task, *arguments)
                found = None if message is None else msgspec.structs.asdict(message)
            case "send":
                found = msgspec.structs.asdict(port.send(task, *arguments))
            case "spawn":
                name, children = arguments
                port.spawn(task, name, [NewChild(*child) for child in children])
            case "draw":
                turn = port.draw(task, *arguments)
                found = None if turn is None else [*turn]
            case "deadline":
                found = [*port.deadline(*arguments)]
            case "answer":
                found = port.answer(*arguments)
            case "wake_time":
                found = port.wake_time(*arguments)
            case _:
                raise InvalidRequest(f"a task cannot ask for '{ask.name}'")
        return None if found is MISSING else values.pack_one(found)


def _over(remote: RemoteTask) -> InvalidRequest:
    return InvalidRequest(
        f"node '{remote.node.name}' is over (it timed out or was cancelled), but its code is "
        "still running: nothing more is recorded for it"
    )


def _end(remote: RemoteTask, timeout: Timeout) -> tuple[float, float]:
    if remote.began is None:
        return float("inf"), 0.0
    ends: list[tuple[float, float]] = []
    if timeout.run is not None:
        ends.append((remote.began + timeout.run, timeout.run))
    if timeout.idle is not None:
        ends.append((max(remote.began, remote.beat) + timeout.idle, timeout.idle))
    return min(ends)
