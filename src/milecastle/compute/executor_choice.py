"""The executor for a task: this process's, or the site its node names.

A local executor does the waiting; a task ending elsewhere wakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, Self

from milecastle.compute.finding import reference_to
from milecastle.graph.structure import CompiledGraph
from milecastle.model.event import Event
from milecastle.model.policies import Ray
from milecastle.model.task import Finished, RunTask
from milecastle.ports.executor import EmitEvent, Executor, Executors, LoopExecutor
from milecastle.ports.observer import Observer
from milecastle.ports.task import TaskPort

if TYPE_CHECKING:
    from milecastle.compute.task_client import RemoteTasks, Site


class SeenExecutors(Executors, Protocol):
    def seen_by(self, observers: Sequence[Observer], /) -> Self: ...


def site_of(run_on: Any) -> Site:
    if run_on == "process":
        from milecastle.compute.processes import shared_pool

        return shared_pool()
    from milecastle.compute.ray_cluster import shared_cluster

    return shared_cluster(run_on if isinstance(run_on, Ray) else Ray())


class ExecutorChoice:
    def __init__(
        self, local: SeenExecutors, graph: CompiledGraph, sites: Callable[[Any], Site] = site_of
    ) -> None:
        self._local = local
        self._graph = graph
        self._sites = sites
        self._find = cache(partial(reference_to, graph))

    def seen_by(self, observers: Sequence[Observer]) -> ExecutorChoice:
        return ExecutorChoice(self._local.seen_by(observers), self._graph, self._sites)

    def _remote(self, ports: Mapping[str, TaskPort], wake: Callable[[], None]) -> RemoteTasks:
        from milecastle.compute.task_client import RemoteTasks

        return RemoteTasks(self._graph, ports, self._find, self._sites, wake)

    def on_thread(self, ports: Mapping[str, TaskPort], most: int) -> Executor:
        local = self._local.on_thread(ports, most)
        return _Placed(local, self._remote(ports, local.wake))

    def on_loop(
        self, ports: Mapping[str, TaskPort], most: int, tell: EmitEvent | None
    ) -> LoopExecutor:
        local = self._local.on_loop(ports, most, tell)
        return _PlacedOnLoop(local, self._remote(ports, local.wake))


class _Placed:
    def __init__(self, local: Executor, remote: RemoteTasks) -> None:
        self._local = local
        self._remote = remote
        self._here = 0
        self.call = local.call
        self.emit = local.emit
        self.wake = local.wake

    @property
    def can_stop(self) -> bool:
        return not self._here

    def start(self, tasks: Sequence[RunTask]) -> None:
        here = self._remote.start(tasks)
        if here:
            self._here += len(here)
            self._local.start(here)

    def wait(self, until: float | None) -> list[Finished | Event]:
        ended = self._remote.take()
        ends = [moment for moment in (until, self._remote.due()) if moment is not None]
        found = self._local.wait(monotonic() if ended else min(ends, default=None))
        self._here -= sum(isinstance(item, Finished) for item in found)
        return [*found, *ended, *self._remote.take()]

    def cancel(self, tasks: Sequence[RunTask]) -> None:
        self._local.cancel(self._remote.cancel(tasks))

    def close(self) -> None:
        self._remote.close()
        self._local.close()


class _PlacedOnLoop:
    def __init__(self, local: LoopExecutor, remote: RemoteTasks) -> None:
        self._local = local
        self._remote = remote
        self.call = local.call
        self.emitted = local.emitted
        self.take_events = local.take_events
        self.emit = local.emit
        self.aemit = local.aemit
        self.wake = local.wake

    def start(self, tasks: Sequence[RunTask]) -> None:
        here = self._remote.start(tasks)
        if here:
            self._local.start(here)

    async def wait(self, seconds: float | None) -> list[Finished | Event]:
        ended, due = self._remote.take(), self._remote.due()
        if ended:
            seconds = 0.0
        elif due is not None:
            left = max(0.0, due - monotonic())
            seconds = left if seconds is None else min(left, seconds)
        found = await self._local.wait(seconds)
        return [*found, *ended, *self._remote.take()]

    def cancel(self, tasks: Sequence[RunTask]) -> None:
        self._local.cancel(self._remote.cancel(tasks))

    async def close(self) -> None:
        self._remote.close()
        await self._local.close()
