"""Calling nodes: a task's resources in this process, and its timeout.

A task is data: its function is found here, in a table of compiled graphs, and its code talks to
the run through the port of that run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic
from typing import Any

from milecastle.engine.context import Around, RunningTask, RunResources, current_task, places
from milecastle.errors import InvalidRequest
from milecastle.graph.structure import CompiledGraph
from milecastle.model.policies import Timeout
from milecastle.model.task import RunFacts, RunTask
from milecastle.ports.task import TaskPort

_set_task = current_task.set


class NodeCaller:
    """Finds the resources for a call's tasks. Used by one thread: the driver's.

    A function of only the state is called by ``call`` with minimal overhead; on a loop
    only if it is async. For any other ``call`` is ``other``, and for all if there is an ``around``.
    """

    __slots__ = (
        "_around",
        "_graphs",
        "_nodes",
        "_on_loop",
        "_other",
        "_place",
        "_ports",
        "_present",
        "_run",
        "_runs",
    )

    def __init__(
        self,
        graphs: Sequence[CompiledGraph],
        ports: Mapping[str, TaskPort],
        other: Callable[[RunningTask], Any],
        *,
        on_loop: bool = False,
        around: Around | None = None,
    ) -> None:
        self._around = around
        self._graphs = graphs
        self._ports = ports
        self._other = other
        self._on_loop = on_loop
        self._run: RunFacts | None = None
        self._runs: list[RunFacts] = []

    def _enter(self, run: RunFacts) -> None:
        place = places.get(run)
        if place is None:
            graph = self._graph(run)
            place = RunResources(self._ports[run.run_id], graph.nodes, graph.schema, self._around)
            places[run] = place
            self._runs.append(run)
        self._place, self._present, self._run = place, place.present, run
        self._nodes = place.nodes

    def _graph(self, run: RunFacts) -> CompiledGraph:
        for graph in self._graphs:
            if graph.fingerprint == run.fingerprint:
                break
        else:
            raise InvalidRequest(f"no graph here has the fingerprint {run.fingerprint}")
        for name in run.path:
            subgraph = graph.nodes[name].subgraph
            if subgraph is None:
                raise AssertionError(f"node '{name}' is not a subgraph")
            graph = subgraph.graph
        return graph

    def open(self, task: RunTask) -> RunningTask:
        if task.run is not self._run:
            self._enter(task.run)
        return RunningTask(task, self._place, self._place.nodes[task.node])

    def call(self, task: RunTask) -> Any:
        if task.run is not self._run:
            self._enter(task.run)
        node = self._nodes[task.node]
        if not node.positional or self._around or (self._on_loop and not node.is_async):
            return self._other(RunningTask(task, self._place, node))
        _set_task(task)
        try:
            return node.function(self._present(task.state))
        except (StopIteration, GeneratorExit) as error:
            raise plain_error(error, task.node) from error

    def close(self) -> None:
        for run in self._runs:
            places.pop(run, None)
        if self._run is not None:
            del self._place, self._present, self._nodes
            self._run = None
        self._other = perform


def perform(running: RunningTask) -> Any:
    _set_task(running)
    node, task, around = running.node, running.task, running.place.around
    context = running.context if node.wants_context else None
    state = running.place.present(task.state)
    if node.is_async and around is not None:
        return _await_inside(around(task), partial(node.call, state, task.run.config, context))
    try:
        if around is None:
            return node.call(state, task.run.config, context)
        with around(task):
            return node.call(state, task.run.config, context)
    except (StopIteration, GeneratorExit) as error:
        raise plain_error(error, node.name) from error


def is_raised_inside(error: GeneratorExit) -> bool:
    """True if the awaited object raised it, and not whoever closes the coroutine."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def plain_error(error: BaseException, node: str) -> RuntimeError:
    """An error that generators, coroutines and futures carry as any other, as PEP 479 has it."""
    return RuntimeError(f"node '{node}' raised {type(error).__name__}")


async def _await_inside(around: AbstractContextManager[None], call: Callable[[], Any]) -> Any:
    with around:
        return await call()


class Deadlines:
    """Tasks with a timeout, by start time. Times are monotonic."""

    def __init__(self) -> None:
        self._tasks: dict[int, tuple[RunningTask, Timeout, float]] = {}

    def add(self, running: RunningTask, since: float | None = None) -> None:
        timeout = running.node.policy.timeout
        if timeout is not None:
            self._tasks[id(running)] = (running, timeout, monotonic() if since is None else since)

    def drop(self, running: RunningTask) -> None:
        if self._tasks:
            self._tasks.pop(id(running), None)

    def next(self) -> float | None:
        if not self._tasks:
            return None
        return min(_end(*watched)[0] for watched in self._tasks.values())

    def pass_(self, now: float) -> tuple[RunningTask, float] | None:
        for watched in self._tasks.values():
            end, seconds = _end(*watched)
            if end <= now:
                self.drop(watched[0])
                return watched[0], seconds
        return None


def _end(running: RunningTask, timeout: Timeout, started: float) -> tuple[float, float]:
    ends: list[tuple[float, float]] = []
    if timeout.run is not None:
        ends.append((started + timeout.run, timeout.run))
    if timeout.idle is not None:
        beat = running.made.beat if running.made is not None else 0.0
        ends.append((max(started, beat) + timeout.idle, timeout.idle))
    return min(ends)
